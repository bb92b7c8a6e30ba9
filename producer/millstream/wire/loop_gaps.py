"""Measures for how long an event loop did not run: everything else waits while one message is read, or while
the machine has no time for the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TICK_S = 0.02  # a measured gap may be too short by this
WINDOW_S = 60.0


class LoopGaps:
    """The longest gap of the last one to two minutes: whoever asks once a minute misses none."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()  # of the window
        self._longest_s = 0.0  # in it
        self._before_s = 0.0  # in the one before it

    async def watch(self) -> None:
        """Measure, until it is cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(TICK_S)
            self.count(self._clock() - before - TICK_S)

    def count(self, gap_s: float) -> None:
        self._turn()
        self._longest_s = max(self._longest_s, gap_s)

    @property
    def longest_s(self) -> float:
        """Asked from another thread, too, and while the loop stands still."""
        return max(self._longest_s, self._before_s)

    def _turn(self) -> None:
        if (now := self._clock()) - self._begun < WINDOW_S:
            return
        recent = now - self._begun < 2 * WINDOW_S
        self._begun, self._before_s, self._longest_s = now, self._longest_s if recent else 0.0, 0.0
