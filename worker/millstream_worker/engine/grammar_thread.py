"""Compiles grammars, and follows them through earlier output, on a thread of its own: a large one takes a
second, in which the batch goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Mapping
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue

from millstream_worker.engine.brain.grammars.compiling import GrammarCompiler, InvalidGrammar
from millstream_worker.engine.brain.grammars.matcher import Matcher
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest

_NICE = 19  # the most
STACK_BYTES = 256 * 2**20  # reserved, not taken: a text of 256 KiB is a chain of thousands of references
Compiled = tuple[EngineRequest, Mapping[int, Matcher] | Refused]


class GrammarThread:
    """Requests go in by `put`, one by one, and come out by `take` with their matchers: those of a higher lane
    first, and otherwise in the same order."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._given: PriorityQueue[tuple[int, int, EngineRequest]] = PriorityQueue()  # lane, number
        self._numbers = count()
        self._done: SimpleQueue[Compiled] = SimpleQueue()
        self._inside: set[int] = set()  # handles
        self._aborted: set[int] = set()  # some of those
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Rows that are inside."""
        return len(self._inside)

    def put(self, request: EngineRequest) -> None:
        self._inside |= _handles(request)
        self._given.put((request.priority, next(self._numbers), request))
        if self._thread is None:
            self._thread = threading.Thread(target=self._compile, name="grammars", daemon=True)
            _start(self._thread)

    def abort(self, handles: Iterable[int]) -> None:
        """Remember that these rows are not wanted any more; others are ignored."""
        self._aborted |= self._inside.intersection(handles)

    def take(self) -> list[tuple[EngineRequest, Mapping[int, Matcher] | Refused, set[int]]]:
        """What is done, and the handles of each request that were aborted meanwhile."""
        taken = []
        while self._inside:
            try:
                request, result = self._done.get_nowait()
            except Empty:
                break
            handles = _handles(request)
            taken.append((request, result, self._aborted & handles))
            self._inside -= handles
            self._aborted -= handles
        return taken

    def _compile(self) -> None:
        _yield_cores()
        while True:
            _, _, request = self._given.get()
            unwanted = _handles(request) <= self._aborted
            self._done.put((request, {} if unwanted else self._result(request)))

    def _result(self, request: EngineRequest) -> Mapping[int, Matcher] | Refused:
        assert request.grammar is not None, "a request without a grammar"
        try:
            return self._compiler.matchers(request)
        except InvalidGrammar as error:
            problem = str(error)
        except BaseException as error:  # noqa: BLE001 - panics, too: no request is lost
            problem = f"cannot be compiled: {error!r:.300}"
        grammar = request.grammar
        return Refused(request.handle, grammar.field, f"{grammar.type}: {problem}; change it")


def _yield_cores() -> None:
    """Let this thread have what the engine's threads leave: a step has hundreds of operations for which all
    of them wait, and beside a compiler it took ten times as long."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _handles(request: EngineRequest) -> set[int]:
    return set(range(request.handle, request.handle + request.choices))


def _start(thread: threading.Thread) -> None:
    """With a large stack: the compiler descends a chain of references, and dies where the stack ends."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(usual)
