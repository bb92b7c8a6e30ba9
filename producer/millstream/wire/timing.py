"""Timing of server access: pauses between tries, waiting for an event, and the server's clock."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from math import inf
from typing import Any


def doubled(first_s: float, longest_s: float, failures: int) -> float:
    """The pause after this many failures in a row: doubled after each one but the first, up to
    `longest_s`.
    """
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 64))


def jittered(seconds: float) -> float:
    """Multiplied by a random factor from 0.5 to 1.5, so that many processes do not act at the same time."""
    return seconds * random.uniform(0.5, 1.5)


class Backoff:
    """Exponential backoff with jitter. `failures` counts the pauses since the last `reset`."""

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
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


async def within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for the event for at most `seconds`; None: without a limit. False: it was not set in time."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class ServerClock:
    """The Redis server's clock, the source of all times of the protocol: the local monotonic clock plus the
    last measured offset, so that jumps of the local wall clock do not matter.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_s = time.time() - monotonic()  # until the first `sync`
        self._synced_at_s = -inf

    @property
    def age_s(self) -> float:
        """Seconds since the last `sync`; infinite before the first."""
        return self._monotonic() - self._synced_at_s

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return round((self._monotonic() + self._offset_s) * 1000)

    async def sync(self, redis: Any) -> None:
        """Measure the offset. The server's time is assumed to belong to the middle of the round trip."""
        sent = self._monotonic()
        seconds, microseconds = await redis.time()
        self._synced_at_s = self._monotonic()
        self._offset_s = seconds + microseconds / 1e6 - (sent + self._synced_at_s) / 2
