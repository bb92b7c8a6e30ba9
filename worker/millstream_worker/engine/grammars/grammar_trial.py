"""Compiles each new grammar in a small process first: a few lines can take unbounded time or memory, or
overflow the compiler's stack. No limit of llguidance's prevents that; it would end the engine or block its
thread. What validates arguments by a JSON schema has no limits either, and runs there, too.

    python -m millstream_worker.engine.grammars.grammar_trial    the process: it ends with its input

Both ways, a message is 4 bytes of length (big-endian) and UTF-8: a grammar in llguidance's form, or a list of
a JSON schema and an instance or null, as texts; the CPU seconds that it took, a space, and what is wrong with
it, or nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from math import ceil
from typing import IO

from llguidance import LLMatcher, LLTokenizer

from millstream_worker.engine.grammars.grammar_compiler import limits
from millstream_worker.engine.grammars.grammar_fault import InvalidGrammar
from millstream_worker.engine.grammars.grammar_thread import STACK_BYTES
from millstream_worker.engine.grammars.partial.partial_calls import TAKES_TOO_LONG
from millstream_worker.engine.grammars.schemas.instance_check import problem_of_instance, problem_of_schema

CPU_S = 2  # of one grammar; within the bounds of a format's shape, all that was seen took less than 1
_LOAD_CPU_S = 30  # of loading what validates, which took 2 on a busy machine
_NO_WAY = (
    "no answer can fit it: it refers to nothing but itself, or allows no character where the answer begins; "
    "say what the answer is"
)
MEMORY_BYTES = 2 << 30  # of addresses, 0.3 GiB of which are Python's
_COMMAND = (sys.executable, "-m", "millstream_worker.engine.grammars.grammar_trial")


class GrammarTrial:
    """One process, started when it is needed. A grammar that ends it is refused."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def check(self, grammar: str) -> float:
        """Returns the CPU seconds that the grammar took. Raises InvalidGrammar."""
        answer = self._asked(grammar)
        if answer is None:
            raise InvalidGrammar(
                f"it takes more than {CPU_S} s, or too much memory, to compile; write it with fewer "
                "alternatives, fewer patterns for one string, and smaller bounds",
                CPU_S,
            )
        used_s, problem = answer.split(" ", 1)
        if problem:
            raise InvalidGrammar(problem, float(used_s))
        return float(used_s)

    def problem(self, schema: str, instance: str | None = None) -> str:
        """Returns why the instance does not fit the schema, or without one why nothing can be validated by
        it; empty if it does, or can. Both are JSON texts.
        """
        answer = self._asked(json.dumps([schema, instance]))
        return TAKES_TOO_LONG if answer is None else answer.split(" ", 1)[1]

    def _asked(self, message: str) -> str | None:
        """Returns the process' answer; None if the message ended it."""
        process = self._process or self._start()
        assert process.stdin is not None, "it was opened"
        assert process.stdout is not None, "it was opened"
        answer = None
        with contextlib.suppress(BrokenPipeError):
            _write(process.stdin, message)
            answer = _read(process.stdout)
        if answer is None:
            self._process = None
            self._end()
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process = process
        self._end = weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it was opened"
    assert process.stdout is not None, "it was opened"
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()
    process.wait()


def main() -> None:
    tokenizer = LLTokenizer("byte")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(BrokenPipeError):
        while (message := _read(sys.stdin.buffer)) is not None:
            is_instance = message.startswith("[")
            if is_instance:
                _limit_time(_LOAD_CPU_S)
                importlib.import_module("jsonschema")  # most requests need none
            before_s = time.process_time()
            _limit_time()
            try:
                if is_instance:
                    schema, instance = json.loads(message)
                    given = instance is not None
                    problem = problem_of_instance(schema, instance) if given else problem_of_schema(schema)
                else:
                    problem = _problem(LLMatcher(tokenizer, message, log_level=0, limits=limits()))
            except MemoryError:
                raise
            except BaseException as error:  # noqa: BLE001 - a panic, too, which may quote the grammar
                reader = "validator" if is_instance else "compiler"
                problem = f"the {reader} cannot read it ({type(error).__name__}); write it in another way"
            _write(sys.stdout.buffer, f"{time.process_time() - before_s:.3f} {problem}")


def _problem(matcher: LLMatcher) -> str:
    """Returns what is wrong with the grammar, also at its beginning, as far as bytes show it; else empty."""
    if matcher.is_error():
        return str(matcher.get_error())
    matcher.compute_bitmask()
    return _NO_WAY if matcher.is_error() else ""


def _limit_time(cpu_s: int = CPU_S) -> None:
    """Limits the processor's time, which a busy machine does not shorten; it also ends a process whose engine
    is gone.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = ceil(used.ru_utime + used.ru_stime) + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


def _write(stream: IO[bytes], text: str) -> None:
    data = text.encode()
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def _read(stream: IO[bytes]) -> str | None:
    """Returns the next message; None if the other side has closed."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "big")
    data = stream.read(size)
    return data.decode() if len(data) == size else None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its engine
    threading.stack_size(STACK_BYTES)
    trial = threading.Thread(target=main)
    trial.start()
    trial.join()
