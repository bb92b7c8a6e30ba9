"""Open loops, against an engine and through the queue: a slow one, and clients that wait, change nothing of
when requests come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from ops.bench.load.arrivals import Arrival, Served
from ops.bench.load.engine import drive
from ops.bench.load.queue import Clock
from ops.bench.load.queue import drive as drive_queue

from millstream_worker.engine.protocol.outputs import EngineStats, Step
from millstream_worker.engine.protocol.request import EngineRequest


@dataclass
class Time:
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    async def pass_on(self, seconds: float) -> None:
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


@dataclass
class SlowEngine:
    """One row at a time, one token a second."""

    clock: Time
    waiting: list[EngineRequest] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    added_at: list[float] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.left

    def add(self, request: EngineRequest) -> None:
        self.waiting.append(request)
        self.added_at.append(self.clock.now - 100.0)

    def abort(self, handles: Iterable[int]) -> None:
        self.waiting, self.left = [], {}

    def step(self) -> Step:
        if not self.left:
            request = self.waiting.pop(0)
            self.left[request.handle] = request.max_tokens
        self.clock.now += 1.0
        [handle] = self.left
        self.left[handle] -= 1
        finished = [] if self.left[handle] else [(handle, "length")]
        self.left = {} if finished else self.left
        return Step([handle], [7], finished, [], [], EngineStats())


@pytest.fixture
def engine() -> SlowEngine:
    return SlowEngine(Time())


def arrivals(*times: float, tokens: int = 2) -> list[Arrival]:
    return [Arrival(at, (1, 2, 3), tokens) for at in times]


def served_by(engine: SlowEngine, coming: list[Arrival], limit_s: float = 60) -> list[Served]:
    return drive(engine, coming, limit_s=limit_s, clock=engine.clock, sleep=engine.clock.sleep)


def test_latency_counts_from_the_scheduled_arrival(engine: SlowEngine) -> None:
    served = served_by(engine, arrivals(0.0, 0.1, 0.2))
    assert [one.due_s for one in served] == [0.0, 0.1, 0.2]
    assert [one.first_s for one in served] == pytest.approx([1.0, 3.0, 5.0])
    assert [one.end_s for one in served] == pytest.approx([2.0, 4.0, 6.0])
    assert [one.tokens for one in served] == [2, 2, 2]
    assert engine.added_at == pytest.approx([0.0, 1.0, 1.0])  # between steps, not after the one before it


def test_an_idle_engine_waits_for_the_next_arrival(engine: SlowEngine) -> None:
    served = served_by(engine, arrivals(0.5, 9.0))
    assert engine.clock.slept == pytest.approx([0.5, 6.5])
    assert [one.end_s for one in served] == pytest.approx([2.5, 11.0])


def test_what_is_left_at_the_limit_is_aborted(engine: SlowEngine) -> None:
    served = served_by(engine, arrivals(0.0, 0.0, 50.0, tokens=3), limit_s=4.5)
    assert [one.end_s for one in served] == [pytest.approx(3.0), None, None]
    assert served[1].first_s == pytest.approx(4.0)
    assert engine.idle
    assert len(engine.added_at) == 2


# --- through the queue

ARRIVALS = [Arrival(at, (1,), 1) for at in (0.0, 1.0, 2.5)]


async def test_requests_come_when_due_though_none_was_answered() -> None:
    time, begun, all_there = Time(0.0), [], asyncio.Event()

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        begun.append(now())
        if len(begun) == len(ARRIVALS):
            all_there.set()
        await all_there.wait()
        served.end_s = now()

    served = await drive_queue(serve, ARRIVALS, limit_s=30, clock=time, sleep=time.pass_on)
    assert begun == pytest.approx([0.0, 1.0, 2.5])
    assert [one.due_s for one in served] == [0.0, 1.0, 2.5]
    assert [one.end_s for one in served] == pytest.approx([2.5] * 3)


async def test_a_late_generator_makes_up_for_it() -> None:
    """It was held up for two seconds: what had been due then comes at once, with its own arrival."""
    time, begun = Time(0.0), []

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        begun.append(now())
        time.now = max(time.now, 2.0)

    served = await drive_queue(serve, ARRIVALS, limit_s=30, clock=time, sleep=time.pass_on)
    assert begun[1:] == pytest.approx([2.0, 2.5])
    assert [one.due_s for one in served] == [0.0, 1.0, 2.5]


async def test_what_has_not_ended_in_time_is_cut_off() -> None:
    time, cut = Time(0.0), []

    async def serve(arrival: Arrival, served: Served, now: Clock) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(arrival.at_s)

    served = await drive_queue(serve, ARRIVALS, limit_s=0.05, clock=time, sleep=time.pass_on)
    assert sorted(cut) == [0.0, 1.0, 2.5]
    assert [one.end_s for one in served] == [None] * 3
