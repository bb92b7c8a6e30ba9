"""What is measured of devices and requests, and the arithmetic of the tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ops.bench.device_clock import DeviceClock
from ops.bench.measures import Run, Timing, TokenRecorder, percentiles
from ops.bench.memory import peak_bytes, reset_peak


def test_time_per_output_token_leaves_out_the_first() -> None:
    assert Timing(first_s=2.0, last_s=5.0, tokens=4).tpot_s == pytest.approx(1.0)
    assert Timing(first_s=2.0, last_s=2.0, tokens=1).tpot_s is None
    assert Timing(first_s=None, last_s=5.0, tokens=4).tpot_s is None


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(float(value) for value in range(100, 0, -1)) == (50.0, 95.0, 99.0)
    assert percentiles([7.0]) == (7.0, 7.0, 7.0)
    assert percentiles([None, 1.0, None, 3.0], (50, 100)) == (1.0, 3.0)
    assert percentiles([None]) == ()


def test_a_recorder_keeps_the_first_and_last_time_per_request() -> None:
    recorder = TokenRecorder(2, now=10.0)
    recorder.record(0, 10.5)
    recorder.record(1, 11.0, tokens=2)
    recorder.record(0, 12.0)
    run = recorder.run([2, 2], steps=3)
    assert run == Run(2.0, (Timing(0.5, 2.0, 2), Timing(1.0, 1.0, 2)), steps=3)
    assert run.tokens_s == pytest.approx(4 / 2.0)
    assert run.ttft_s() == (0.5, 1.0, 1.0)
    assert run.tpot_s() == (0.0, 1.5, 1.5)


@pytest.mark.parametrize("expected", [[2, 2], [2, 4], [3, 3]])
def test_a_run_with_other_lengths_is_none(expected: list[int]) -> None:
    recorder = TokenRecorder(2, now=0.0)
    recorder.record(0, 1.0, tokens=2)
    recorder.record(1, 1.0, tokens=3)
    with pytest.raises(ValueError, match="tokens instead of"):
        recorder.run(expected, steps=None)


MIB = 2**20


def test_a_memory_peak_is_seen_later_and_cleared_by_a_reset() -> None:
    reset_peak()
    before = peak_bytes()
    block = b"x" * (96 * MIB)
    assert len(block) == 96 * MIB
    del block
    assert peak_bytes() - before > 80 * MIB
    reset_peak()
    assert peak_bytes() - before < 60 * MIB


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
