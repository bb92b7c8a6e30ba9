"""One kind of input with those who read it, and the run of many inputs through them.

Input number n of a target is drawn from (seed, target, n) alone: any of them can be made again.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from millstream.errors import ENDS

_LONGEST_MESSAGE = 4000  # a clear error can be read
_KEPT = 5  # violations of one target that are told


@dataclass(frozen=True, slots=True)
class Target:
    """`make` draws a case of plain values; `feed` gives it to the product and checks what comes of it, or
    raises one of `clear`, which is told to the sender. Anything else is a violation."""

    name: str
    make: Callable[[Random], Any]
    feed: Callable[[Any], object]
    clear: tuple[type[Exception], ...]
    share: float = 1.0  # of a long run's inputs
    hang_s: float = 20.0  # of CPU time, for one input


@dataclass(frozen=True, slots=True)
class Violation:
    target: str
    number: int
    case: str  # hex of what `written` gives
    what: str

    def __str__(self) -> str:
        return f"{self.target} #{self.number}: {self.what}\n  --replay {self.target} {self.case}"


@dataclass(slots=True)
class Tally:
    """What came of a target's inputs."""

    target: str
    inputs: int = 0
    results: int = 0
    errors: int = 0
    crashes: int = 0
    seconds: float = 0.0  # of CPU time
    grown_mib: float = 0.0  # of the process, at its peak
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in ("inputs", "results", "errors", "crashes", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.grown_mib = max(self.grown_mib, other.grown_mib)
        self.violations = (self.violations + other.violations)[:_KEPT]


class Refused(Exception):
    """For targets whose reader refuses an input by other means than an error."""


class Hang(BaseException):
    """One input has taken far too long; no handler for mistakes may take it."""


@cache
def folder() -> Path:
    """For files of the inputs; goes with the process. In memory where that is possible."""
    memory = Path("/dev/shm")
    made = tempfile.TemporaryDirectory(prefix="millstream-fuzz-", dir=memory if memory.is_dir() else None)
    Finalize(None, made.cleanup, exitpriority=0)  # also in a child of multiprocessing
    return Path(made.name)


def check(holds: object, what: str) -> None:
    """As `assert`, for where an error is being handled."""
    if not holds:
        raise AssertionError(what)


def run(target: Target, seed: str, count: int, first: int = 0) -> Tally:
    """Feed inputs `first` to `first + count - 1`."""
    tally = Tally(target.name)
    before = _peak_mib()
    begun = time.process_time()
    with _watched(target.hang_s):
        for number in range(first, first + count):
            _one(target, seed, number, tally)
    tally.seconds = time.process_time() - begun
    tally.grown_mib = _peak_mib() - before
    return tally


def case_of(target: Target, seed: str, number: int) -> Any:
    return target.make(Random(f"{seed}/{target.name}/{number}"))


def written(case: Any) -> str:
    """As hex, whatever is in it."""
    with _numbers_of_any_length():
        return ascii(case).encode().hex()


def read(case: str) -> Any:
    """What `written` wrote."""
    with _numbers_of_any_length():
        return eval(bytes.fromhex(case).decode(), {"__builtins__": {}}, {"nan": math.nan, "inf": math.inf})


def outcome(target: Target, case: Any) -> tuple[str, str]:
    """`result`, `error` or `crash`, and what was said."""
    signal.setitimer(signal.ITIMER_PROF, target.hang_s)
    try:
        target.feed(case)
    except target.clear as error:
        return _clear(error)
    except ENDS:
        raise
    except BaseException as error:  # noqa: BLE001 - any is what is looked for: a panic, too, and a Hang
        return "crash", _told(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "result", ""


def _one(target: Target, seed: str, number: int, tally: Tally) -> None:
    kind, said = outcome(target, case_of(target, seed, number))
    tally.inputs += 1
    match kind:
        case "result":
            tally.results += 1
        case "error":
            tally.errors += 1
        case _:
            tally.crashes += 1
            if len(tally.violations) < _KEPT:  # made again: it may have been changed on its way
                case = written(case_of(target, seed, number))
                tally.violations.append(Violation(target.name, number, case, said))


def _clear(error: Exception) -> tuple[str, str]:
    said = str(error)
    if not said or len(said) > _LONGEST_MESSAGE:
        return "crash", f"{type(error).__name__} whose message has {len(said)} characters"
    return "error", said


def _told(error: BaseException) -> str:
    places = [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return f"{type(error).__name__}: {str(error)[:300]} ({' > '.join(places[-5:])})"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _numbers_of_any_length() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


@contextmanager
def _watched(hang_s: float) -> Iterator[None]:
    def hang(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {hang_s:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, hang)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)
