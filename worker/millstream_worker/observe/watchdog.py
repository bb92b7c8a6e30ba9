"""Detects loops of the worker that stand still. Each loop counts its turns; a thread compares the counts, so
that it also detects a blocked event loop.

Time is counted in looks, not by the clock: while a process or its machine was suspended, the thread did not
look either. An outage of the server is no standstill: the loops keep turning and report it as their trouble.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType

LOOK_S = 1.0
EXIT_STUCK = 3  # exit status of a worker that has ended itself


@dataclass(slots=True, eq=False)
class LoopWatch:
    """One loop. It is watched from its first turn until it leaves its `with` block."""

    name: str
    limit_s: float  # its longest healthy turn
    turns: int = 0
    running: bool = False
    succeeded_at: float | None = None  # monotonic seconds: its last success
    # written by the watchdog's thread
    seen_turns: int = 0
    still_s: float = 0.0  # in looks
    since: str = ""  # when it was last seen to turn

    def __enter__(self) -> None:
        self.turn()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.running = False

    def turn(self) -> None:
        self.turns += 1
        self.running = True

    def succeed(self) -> None:
        self.succeeded_at = time.monotonic()
        self.turn()

    def look(self, seconds: float) -> None:
        if self.turns != self.seen_turns or not self.running:
            self.seen_turns = self.turns
            self.still_s = 0.0
            self.since = datetime.now(UTC).isoformat(timespec="seconds")
        else:
            self.still_s += seconds

    @property
    def stuck(self) -> bool:
        return self.still_s >= self.limit_s

    def __str__(self) -> str:
        return f"{self.name} has made no turn since {self.since}"


class Watchdog:
    """All loops of a worker. `limit_s`: how long a turn may take, in addition to its intended waits."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.all: list[LoopWatch] = []

    def watch(self, name: str, waits_s: float = 0.0) -> LoopWatch:
        watch = LoopWatch(name, self.limit_s + waits_s)
        self.all.append(watch)
        return watch

    def look(self, seconds: float) -> None:
        for watch in list(self.all):
            watch.look(seconds)

    @property
    def problem(self) -> str:
        """The loops that stand still, and since when; empty if all turn."""
        return "; ".join(str(watch) for watch in list(self.all) if watch.stuck)

    def last(self) -> list[tuple[str, float | None]]:
        """(name, seconds since its last success) of each loop; None: none yet. For loops of the same name,
        the longest time.
        """
        now = time.monotonic()
        found: dict[str, float | None] = {}
        for watch in list(self.all):
            ago = None if watch.succeeded_at is None else now - watch.succeeded_at
            old = found.get(watch.name, 0.0)
            found[watch.name] = None if ago is None or old is None else max(ago, old)
        return list(found.items())


@dataclass(slots=True, eq=False)
class WatchdogThread:
    """The thread that looks. It calls `end` once, when a loop has stood still for `grace_s` beyond its limit;
    `end` need not return.
    """

    watchdog: Watchdog
    grace_s: float
    end: Callable[[str], None]
    look_s: float = LOOK_S
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        stood_s = 0.0
        while not self._over.wait(self.look_s):
            self.watchdog.look(self.look_s)
            problem = self.watchdog.problem
            stood_s = stood_s + self.look_s if problem else 0.0
            if problem and stood_s > self.grace_s:
                self.end(problem)
                return


def end_process(problem: str, engine_pids: Sequence[int]) -> None:
    """Ends a stuck worker: prints the problem and the stacks of all threads, kills the engine, exits. Its
    jobs go to others when the leases expire. It waits for nothing that the rest of the process may hold.
    """
    message = f"millstream-worker is stuck and ends itself: {problem}\n"
    with contextlib.suppress(OSError):
        os.write(2, message.encode())
    with contextlib.suppress(OSError, ValueError, AttributeError):
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    for pid in engine_pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 9)
    os._exit(EXIT_STUCK)
