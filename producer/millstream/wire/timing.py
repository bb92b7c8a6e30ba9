"""Time in front of a server: pauses between tries, waiting for an event, and the server's own clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from math import inf
from typing import Any


def doubled(first_s: float, longest_s: float, failures: int) -> float:
    """The pause after so many failures in a row: doubled with each one after the first, up to `longest_s`."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 64))


def jittered(seconds: float) -> float:
    """From half to one and a half times as long, so that many processes do not come at the same time."""
    return seconds * random.uniform(0.5, 1.5)


class Backoff:
    """Exponential backoff with jitter. `failures` counts the pauses since the last `reset`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.failures = 0

    def next_s(self) -> float:
        self.failures += 1
        return jittered(doubled(self._first_s, self._longest_s, self.failures))

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())

    def reset(self) -> None:
        self.failures = 0


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event for at most `seconds`. False: it was not set in time."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class ServerClock:
    """The Redis server's clock, which all times of the protocol are read from: the local monotonic clock plus
    the offset measured last, so that a jump of the local wall clock does not matter.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_s = time.time() - monotonic()  # until the first `sync`
        self._synced_at_s = -inf

    @property
    def age_s(self) -> float:
        """Since the last `sync`; infinite before the first."""
        return self._monotonic() - self._synced_at_s

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return round((self._monotonic() + self._offset_s) * 1000)

    async def sync(self, redis: Any) -> None:
        """Measure again. The server's answer is taken to belong to the middle of the round trip."""
        sent = self._monotonic()
        seconds, microseconds = await redis.time()
        self._synced_at_s = self._monotonic()
        self._offset_s = seconds + microseconds / 1e6 - (sent + self._synced_at_s) / 2
