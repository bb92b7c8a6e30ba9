"""Compiles grammars, follows them through earlier output, and checks answers that they keep in part, on a
thread of its own: a large one takes a second, in which the batch goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from queue import Empty, PriorityQueue, SimpleQueue

from millstream_worker.engine.grammars.grammar_compiler import GrammarCompiler
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.matcher import Matcher
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_instance
from millstream_worker.engine.grammars.schemas.refusals import remedy_of
from millstream_worker.engine.protocol.outputs import EngineStats, Refused
from millstream_worker.engine.protocol.request import EngineRequest

_NICE = 10  # a tenth of a busy processor: with 19, the trial alone took half a minute on one
_FRAMES = 20  # of a traceback, the innermost
STACK_BYTES = 256 * 2**20  # reserved, not taken: a text of 256 KiB is a chain of thousands of references
Result = Mapping[int, Matcher] | Refused


@dataclass(frozen=True, slots=True)
class Done:
    """A request whose grammar was compiled. `matchers`: by choice. `aborted`: handles of it that were
    aborted meanwhile."""

    request: EngineRequest
    matchers: Result
    aborted: set[int]
    waited_s: float


class GrammarThread:
    """Requests go in by `put`, one by one, and come out by `take` with their matchers: those of a higher lane
    first, in a lane the tenants in turn, and otherwise in the same order."""

    def __init__(
        self, compiler: GrammarCompiler, check: Callable[[str, str], str] = problem_of_instance
    ) -> None:
        """`check`: returns why an instance does not fit a JSON schema, in bounded time."""
        self._compiler = compiler
        self._check = check
        self._given: PriorityQueue[tuple[int, int, int, EngineRequest | _Answer]] = PriorityQueue()
        self._answers: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._turns = _Turns()
        self._numbers = count()
        self._done: SimpleQueue[tuple[EngineRequest, Result]] = SimpleQueue()
        self._since: dict[int, float] = {}  # by the first handle: when it came
        self._inside: set[int] = set()  # handles
        self._aborted: set[int] = set()  # some of those
        self._thread: threading.Thread | None = None
        self._busy_s = 0.0  # written by the thread

    def __len__(self) -> int:
        """The number of rows whose requests were put in and not taken out."""
        return len(self._inside)

    def put(self, request: EngineRequest) -> None:
        self._inside |= _handles(request)
        self._since[request.handle] = time.monotonic()
        turn = self._turns.next_of(request.priority, request.tenant)
        self._given.put((request.priority, turn, next(self._numbers), request))
        if self._thread is None:
            self._thread = threading.Thread(target=self._compile, name="grammars", daemon=True)
            _start(self._thread)

    def put_answer(self, handle: int, request: EngineRequest, matcher: Matcher) -> None:
        """A whole answer of a request, to be checked. The thread runs: it made the matcher."""
        turn = self._turns.next_of(request.priority, request.tenant)
        self._given.put((request.priority, turn, next(self._numbers), _Answer(handle, matcher)))

    def take_answers(self) -> list[tuple[int, str]]:
        """Returns the handles of checked answers, each with why it does not fit; empty if it does."""
        taken = []
        with contextlib.suppress(Empty):
            while True:
                taken.append(self._answers.get_nowait())
        return taken

    def abort(self, handles: Iterable[int]) -> None:
        """Mark these rows as aborted; unknown handles are ignored."""
        self._aborted |= self._inside.intersection(handles)

    def counted(self, stats: EngineStats) -> EngineStats:
        """Add the statistics of the grammars."""
        if self._thread is None:
            return stats
        return stats._replace(
            grammars_waiting=len(self._since),
            grammars_compiled_total=self._compiler.compiled_total,
            grammars_reused_total=self._compiler.reused_total,
            grammar_s_total=self._busy_s,
        )

    def take(self) -> list[Done]:
        taken = []
        while self._inside:
            try:
                request, result = self._done.get_nowait()
            except Empty:
                break
            handles = _handles(request)
            waited_s = time.monotonic() - self._since.pop(request.handle)
            taken.append(Done(request, result, self._aborted & handles, waited_s))
            self._inside -= handles
            self._aborted -= handles
        return taken

    def _compile(self) -> None:
        _yield_cores()
        while True:
            lane, turn, _, request = self._given.get()
            self._turns.begun[lane] = turn
            if isinstance(request, _Answer):
                self._answers.put((request.handle, self._problem(request)))
                continue
            unwanted = _handles(request) <= self._aborted
            began = time.monotonic()
            result = {} if unwanted else self._result(request)
            self._busy_s += time.monotonic() - began
            self._done.put((request, result))

    def _problem(self, answer: _Answer) -> str:
        assert answer.matcher.partial is not None, "it is checked for that"
        try:
            return answer.matcher.partial.problem(answer.matcher.output, self._check)
        except BaseException as error:  # noqa: BLE001 - panics, too: no answer is lost, or whole unchecked
            return f"they cannot be checked: {error!r:.200}"

    def _result(self, request: EngineRequest) -> Result:
        assert request.grammar is not None, "a request without a grammar"
        spec = request.grammar.answer or request.grammar
        try:
            if spec is request.grammar.answer:  # first by itself: a fault of it is not one of the tools
                self._compiler.compile(spec)
                spec = request.grammar
            return self._compiler.matchers(request)
        except (InvalidGrammar, RecursionError, OverflowError) as error:
            return Refused(request.handle, spec.field, f"{spec.type}: {error}; {remedy_of(str(error))}")
        except BaseException as error:  # noqa: BLE001 - panics, too: no request is lost
            trace = "".join(traceback.format_tb(error.__traceback__, -_FRAMES))
            return Refused(request.handle, spec.field, type(error).__name__, trace)


@dataclass(frozen=True, slots=True)
class _Answer:
    handle: int
    matcher: Matcher


class _Turns:
    """Numbers the turns of a lane. A tenant has one request a turn: its first waiting request gets the next
    turn, each further one the turn after its last."""

    def __init__(self) -> None:
        self.begun: dict[int, int] = {}  # by lane: the turn of the request that was begun last
        self._last: dict[tuple[int, str], int] = {}  # by lane and tenant, of those that wait

    def next_of(self, lane: int, tenant: str) -> int:
        self._last = {key: turn for key, turn in self._last.items() if turn > self.begun.get(key[0], 0)}
        turn = self._last.get((lane, tenant), self.begun.get(lane, 0)) + 1
        self._last[lane, tenant] = turn
        return turn


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
