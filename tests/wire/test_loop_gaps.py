"""The meter of an event loop's gaps."""

from __future__ import annotations

import asyncio
import time

from millstream.wire.loop_gaps import TICK_S, WINDOW_S, LoopGaps

BLOCKED_S = 0.2


async def test_a_loop_that_is_blocked_shows_for_how_long() -> None:
    gaps = LoopGaps()
    watching = asyncio.create_task(gaps.watch())
    await asyncio.sleep(2 * TICK_S)
    assert gaps.longest_s < BLOCKED_S - TICK_S
    time.sleep(BLOCKED_S)  # noqa: ASYNC251 - that is what is measured
    await asyncio.sleep(2 * TICK_S)
    watching.cancel()
    assert BLOCKED_S - TICK_S <= gaps.longest_s < 20 * BLOCKED_S


def test_a_gap_is_told_for_one_to_two_minutes() -> None:
    now = 0.0
    gaps = LoopGaps(lambda: now)
    gaps.count(3.0)
    gaps.count(1.0)
    assert gaps.longest_s == 3.0
    now = WINDOW_S
    gaps.count(2.0)
    assert gaps.longest_s == 3.0
    now = 2 * WINDOW_S
    gaps.count(0.5)
    assert gaps.longest_s == 2.0
    now = 4 * WINDOW_S  # nobody counted for a while
    gaps.count(0.1)
    assert gaps.longest_s == 0.1
