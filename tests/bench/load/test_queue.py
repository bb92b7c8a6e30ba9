"""The open loop through the queue: clients that wait keep nobody from coming."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from ops.bench.load.arrivals import Arrival, Served
from ops.bench.load.queue import Clock, drive


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


ARRIVALS = [Arrival(at, (1,), 1) for at in (0.0, 1.0, 2.5)]


async def test_requests_come_when_due_though_none_was_answered() -> None:
    time, begun, all_there = Time(), [], asyncio.Event()

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        begun.append(now())
        if len(begun) == len(ARRIVALS):
            all_there.set()
        await all_there.wait()
        served.end_s = now()

    served = await drive(serve, ARRIVALS, limit_s=30, clock=time, sleep=time.sleep)
    assert begun == pytest.approx([0.0, 1.0, 2.5])
    assert [one.due_s for one in served] == [0.0, 1.0, 2.5]
    assert [one.end_s for one in served] == pytest.approx([2.5] * 3)


async def test_a_late_generator_makes_up_for_it() -> None:
    """It was held up for two seconds: what had been due then comes at once, with its own arrival."""
    time, begun = Time(), []

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        begun.append(now())
        time.now = max(time.now, 2.0)

    served = await drive(serve, ARRIVALS, limit_s=30, clock=time, sleep=time.sleep)
    assert begun[1:] == pytest.approx([2.0, 2.5])
    assert [one.due_s for one in served] == [0.0, 1.0, 2.5]


async def test_what_has_not_ended_in_time_is_cut_off() -> None:
    time, cut = Time(), []

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(arrival.at_s)

    served = await drive(serve, ARRIVALS, limit_s=0.05, clock=time, sleep=time.sleep)
    assert sorted(cut) == [0.0, 1.0, 2.5]
    assert [one.end_s for one in served] == [None] * 3
