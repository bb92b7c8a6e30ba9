"""The Redis server's clock, which all times of the protocol are read from, as this process can tell it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class ServerClock:
    """Local monotonic time plus the offset last measured: a jump of the local wall clock does not matter."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset_ms = time.time() * 1000 - monotonic() * 1000  # until the first `sync`

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000 + self._offset_ms)

    async def sync(self, redis: Any) -> None:
        """Measure again. The server's answer is taken to belong to the middle of the round trip."""
        sent = self._monotonic()
        seconds, microseconds = await redis.time()
        middle = (sent + self._monotonic()) / 2
        self._offset_ms = seconds * 1000 + microseconds / 1000 - middle * 1000
