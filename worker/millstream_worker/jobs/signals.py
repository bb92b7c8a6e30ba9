"""An event without a state."""

from __future__ import annotations

import asyncio

from millstream.wire.timing import within


class Signal:
    """Wakes all who wait at that moment. Any number of tasks may wait; none has to clear anything."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait for the next `notify` for at most `seconds`. False: there was none in time."""
        return await within(self._next, seconds)
