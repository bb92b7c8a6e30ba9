"""The arithmetic of the tables, on values that a head can follow."""

from __future__ import annotations

import pytest
from ops.bench.measures import Run, Timing, TokenRecorder, best, percentile, percentiles


def test_time_per_output_token_leaves_out_the_first() -> None:
    assert Timing(first_s=2.0, last_s=5.0, tokens=4).tpot_s == pytest.approx(1.0)
    assert Timing(first_s=2.0, last_s=2.0, tokens=1).tpot_s is None
    assert Timing(first_s=None, last_s=5.0, tokens=4).tpot_s is None


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles(float(value) for value in range(100, 0, -1)) == (50.0, 95.0, 99.0)
    assert percentiles([7.0]) == (7.0, 7.0, 7.0)
    assert percentiles([None, 1.0, None, 3.0], (50, 100)) == (1.0, 3.0)
    assert percentiles([None]) == ()


def test_a_tape_keeps_the_first_and_the_last_moment_of_each_request() -> None:
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


def test_the_fastest_run_counts() -> None:
    slow, fast = Run(2.0, (Timing(0.1, 2.0, 10),)), Run(1.0, (Timing(0.1, 1.0, 10),))
    assert best([slow, fast, slow]) is fast


def test_a_run_survives_its_file() -> None:
    run = Run(1.5, (Timing(0.25, 1.5, 3), Timing(None, 1.25, 1)), steps=None, peak_bytes=12345)
    assert Run.from_json(run.as_json()) == run


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1), (0.5, 5), (0.51, 6), (0.95, 10), (0.99, 10), (1.0, 10)]
)
def test_percentiles_are_values_that_were_there(share: float, value: int) -> None:
    assert percentile(list(range(1, 11)), share) == value
    assert percentile([7.0], share) == 7.0
