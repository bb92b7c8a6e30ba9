"""Notices that others run on the engine's cores, and has steps computed by fewer threads meanwhile.

Threads that share a step wait for the last of them: beside one process that computes, two threads on two
cores are no faster than one, which has a core for itself. The kernel counts how long threads were ready to
run and did not; where it does not say so, steps always have all threads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from millstream_worker.engine.runner.device.cgroup import ControlGroups

WINDOW_S = 0.05  # of computing, several time slices, that are judged together
MOST_LOST = 0.4  # of a thread's time: with one less, two threads lose some more
FIRST_S, LAST_S = 0.05, 1.6  # until one more is tried; each time in vain doubles it


class FreeCores:
    """Sets torch's number of threads between two steps, from one to all."""

    def __init__(
        self,
        threads: int,
        waited_s: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`waited_s`: how long the threads have waited for cores, all together, since some time."""
        self._threads = threads
        self._waited_s = waited_s or Waits().seconds
        self._clock = clock
        self._computed = 0.0  # seconds since the window began
        self._waited = 0.0
        self._pause = FIRST_S
        self._trial_at = self._step_begun = self._step_ended = 0.0

    def begin_step(self) -> None:
        now = self._step_begun = self._clock()
        if now - self._step_ended > WINDOW_S:  # it was idle: what was before says nothing about now
            self._computed = 0.0
        if now >= self._trial_at and (threads := torch.get_num_threads()) < self._threads:
            torch.set_num_threads(threads + 1)
            self._computed = 0.0
        if not self._computed:
            self._waited = self._waited_s()

    def end_step(self) -> None:
        self._step_ended = self._clock()
        self._computed += self._step_ended - self._step_begun
        if self._computed >= WINDOW_S:
            self._judge((self._waited_s() - self._waited) / self._computed)
            self._computed = 0.0

    def _judge(self, lost: float) -> None:
        """`lost`: how many threads waited, on average."""
        threads = torch.get_num_threads()
        if lost > MOST_LOST and threads > 1:
            torch.set_num_threads(max(1, threads - max(1, round(lost))))
            self._trial_at = self._step_ended + self._pause
            self._pause = min(2 * self._pause, LAST_S)
        elif threads == self._threads:
            self._pause = FIRST_S


class Waits:
    """The waits of threads that were ready to run and did not. They leave out what a quota held up."""

    def __init__(self, threads: Path = Path("/proc/self/task"), groups: ControlGroups | None = None) -> None:
        self._threads = threads
        self._groups = groups or ControlGroups()
        self._limited = self._groups.cpu_quota() is not None

    def seconds(self) -> float:
        """Returns the seconds of the threads that there are now: those of a team stay."""
        nanoseconds = 0
        with contextlib.suppress(OSError):
            for thread in os.listdir(self._threads):
                nanoseconds += self._of(thread)
        return nanoseconds / 1e9 - (self._groups.throttled_s() if self._limited else 0.0)

    def _of(self, thread: str) -> int:
        """Returns the nanoseconds that a thread waited; 0 for one that has ended, or where nobody counts."""
        try:
            with open(f"{self._threads}/{thread}/schedstat", "rb", buffering=0) as file:
                return int(file.read(96).split()[1])
        except (OSError, IndexError):
            return 0
