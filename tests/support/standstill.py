"""For how long a loop stands still while it does some work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millstream.errors import InvalidRequest
from millstream.wire.loop_gaps import TICK_S, LoopGaps

LONGEST_S = 0.2
TRIES = 5  # a busy machine has gaps of its own
Clock = Callable[[], float]


async def gap_of(read: Callable[[], Awaitable[object]], clock: Clock) -> float:
    """Of a loop that reads one message."""
    gaps = LoopGaps(clock)
    watching = asyncio.create_task(gaps.watch())
    await asyncio.sleep(0)
    with suppress(InvalidRequest):
        await read()
    await asyncio.sleep(2 * TICK_S)
    watching.cancel()
    return gaps.longest_s + TICK_S


async def shortest_gap(
    read: Callable[[], Awaitable[object]], clock: Clock = time.thread_time, longest_s: float = LONGEST_S
) -> float:
    """By the CPU time of the loop's thread, which a busy machine does not change."""
    found: list[float] = []
    while len(found) < TRIES and min(found, default=longest_s) >= longest_s:
        found.append(await gap_of(read, clock))
    return min(found)
