"""Busy and idle time by the moments of steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from ops.bench.device_clock import DeviceClock, clock_of


class Moment:
    """Passes when it is recorded."""

    def __init__(self, times: Iterator[float]) -> None:
        self._times = times
        self.at = 0.0

    def record(self) -> None:
        self.at = next(self._times)

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Moment) -> float:
        return end_event.at - self.at


def test_busy_is_within_steps_and_idle_between_them() -> None:
    times = iter([100.0, 110.0, 112.0, 132.0, 200.0, 201.0])
    clock = DeviceClock(lambda: Moment(times))
    spans = []
    for _ in range(3):
        spans.append(clock.start())
        spans[-1].ended.record()
        if len(spans) > 1:  # one step is ahead of the one that is settled
            clock.settle(spans[-2])

    assert clock.times.steps == 2
    assert clock.times.busy_s == pytest.approx(0.030)
    assert clock.times.idle_s == pytest.approx(0.002)
    assert clock.times.idle_share == pytest.approx(2 / 32)
    clock.reset()
    assert clock.times.idle_share == 0.0
    clock.settle(spans[-1])
    assert clock.times.idle_s == 0.0, "what was before the reset does not count"


def test_the_cpu_has_no_clock_of_its_own() -> None:
    assert clock_of(torch.device("cpu")) is None
