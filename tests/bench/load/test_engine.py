"""The open loop against an engine: a slow one changes nothing of when requests come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from ops.bench.load.arrivals import Arrival, Served
from ops.bench.load.engine import drive

from millstream_worker.engine.protocol.outputs import EngineStats, Step
from millstream_worker.engine.protocol.request import EngineRequest


@dataclass
class Clock:
    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@dataclass
class SlowEngine:
    """One row at a time, one token a second."""

    clock: Clock
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
    return SlowEngine(Clock())


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
