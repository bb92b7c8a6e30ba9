"""A signal wakes all who wait, and nobody who comes later."""

from __future__ import annotations

import asyncio

from millstream_worker.jobs.signals import Signal


async def test_everybody_who_waits_is_woken_once() -> None:
    signal = Signal()
    signal.notify()  # nobody waits: it is forgotten
    first, second = asyncio.create_task(signal.wait(60)), asyncio.create_task(signal.wait(60))
    await asyncio.sleep(0)
    assert not first.done()
    signal.notify()
    assert await first
    assert await second
    assert not await signal.wait(0.01)
