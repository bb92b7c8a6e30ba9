"""The speed of a run and the time that is left, on a clock of the test's own."""

from __future__ import annotations

import pytest

from millstream import JobCancelled, NotFound
from millstream.batch.run.pace import NO_WORK, Pace, Work, WorkRates, work_of
from millstream.wire.messages.job_messages import Result, Timing, Usage

ROW = Work(1, 200, 20)


def paced(*ends_s: float, began_s: float = 0.0) -> Pace:
    pace = Pace()
    pace.begin(began_s)
    for end_s in ends_s:
        pace.add(ROW, end_s)
    return pace


def result(first_ms: int | None = 2000, last_ms: int = 6000, **changes: object) -> Result:
    timing = Timing(submitted_ms=1000, first_token_ms=first_ms, last_token_ms=last_ms, finished_ms=last_ms)
    given = {"usage": Usage(prompt_tokens=10, output_tokens=8), "timing": timing} | changes
    return Result.model_validate(given)


@pytest.mark.parametrize(
    ("since_ms", "work"),
    [
        (0, Work(1, 10, 8)),
        (1500, Work(1, 10, 8)),
        (3000, Work(1, 0, 6)),  # its prompt and a quarter of its output were computed before
        (6001, NO_WORK),
    ],
)
def test_work_is_what_was_computed_since_then(since_ms: int, work: Work) -> None:
    assert work_of(result(), since_ms) == work


def test_refused_and_cached_jobs_are_no_work() -> None:
    assert work_of(result(cached=True), 0) == NO_WORK
    assert work_of(result(usage=Usage()), 0) == NO_WORK
    assert work_of(NotFound("0-x"), 0) == NO_WORK
    assert work_of(JobCancelled("0-x", result()), 0) == Work(1, 10, 8)  # it ran until then


def test_rates_are_those_of_the_last_minute() -> None:
    pace = paced(*range(1, 11), *range(101, 131))
    assert pace.rates(130.0) == WorkRates(0.5, 100.0, 10.0)
    assert pace.rates(160.0).rows == pytest.approx(0.5)  # those from 101 to 130
    assert pace.rates(190.5) == WorkRates()
    assert paced(1.0, 2.0, 3.0).rates(6.0).rows == 0.5
    assert Pace().rates(6.0) == WorkRates()


def test_memory_of_ends_is_bounded() -> None:
    pace = paced(*(i / 100 for i in range(100_000)))
    assert len(pace._moments) < 300
    assert pace.rates(999.99).rows == pytest.approx(100, rel=0.02)


def test_time_left_waits_for_enough_rows() -> None:
    assert paced(*range(1, 20)).left_s(9_981, 10_000, 19.0) is None
    assert paced(*range(1, 21)).left_s(9_980, 10_000, 20.0) == pytest.approx(9_980)
    assert paced(1.0, 2.0).left_s(298, 300, 2.0) is None
    assert paced(1.0, 2.0, 3.0).left_s(297, 300, 3.0) == pytest.approx(297)  # one row in a hundred
    assert Pace().left_s(6, 6, 0.0) is None


def test_refused_lines_change_no_estimate() -> None:
    pace = Pace()
    pace.begin(0.0)
    for _ in range(1000):
        pace.add(NO_WORK, 0.1)
    assert pace.left_s(299, 300, 37.0) is None
    for end_s in (60.0, 62.0, 64.0):
        pace.add(ROW, end_s)
    assert pace.left_s(297, 300, 64.0) == pytest.approx(297 * 64 / 3)


def test_time_left_counts_down_between_bursts() -> None:
    """Rows of equal length end together."""
    pace = paced(*[90.0] * 64)
    assert pace.left_s(136, 200, 90.0) == pytest.approx(136 * 90 / 64)
    assert pace.left_s(136, 200, 150.0) == pytest.approx(136 * 90 / 64 - 60)
    for _ in range(64):
        pace.add(ROW, 180.0)
    assert pace.left_s(72, 200, 180.0) == pytest.approx(72 * 90 / 64)


def test_time_left_does_not_grow_at_the_end() -> None:
    pace = paced(3.0, 6.0, 9.0, 12.0, 15.0)
    left = [pace.left_s(1, 6, 15.0 + more) for more in range(120)]
    assert left[:3] == [3.0, 2.0, 1.0]
    assert set(left[3:]) == {None}


def test_time_left_of_a_stalled_run_is_unknown() -> None:
    pace = paced(*range(1, 31))
    assert pace.left_s(10_000, 10_030, 59.0) == pytest.approx(10_000 - 29)
    assert pace.left_s(10_000, 10_030, 61.0) is None
