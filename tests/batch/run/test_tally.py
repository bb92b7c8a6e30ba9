"""The summary's figures on values that can be checked by hand."""

from __future__ import annotations

from array import array

import pytest

from millstream.batch.files.spent import Spent
from millstream.batch.rows.line_findings import MAX_UNKNOWN, note_names
from millstream.batch.run.pace import work_of
from millstream.batch.run.tally import Percentiles, Tally, agrees
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import Result, Timing, Usage


def result(first_ms: int, last_ms: int, tokens: int, text: str = "yes") -> Result:
    return Result(
        choices=(Choice(text=text, token_ids=tuple(range(tokens))),),
        usage=Usage(prompt_tokens=10, cached_tokens=4, output_tokens=tokens),
        timing=Timing(submitted_ms=1000, first_token_ms=first_ms, last_token_ms=last_ms),
    )


def ended(tally: Tally, result: Result, expected: str | None, since_ms: int = 0) -> None:
    work = work_of(result, since_ms)
    tally.pace.add(work, 0.0)
    tally.add(result, expected, work)


def test_percentiles_are_by_nearest_rank() -> None:
    assert Percentiles.of(array("d", range(1, 101))) == Percentiles(50, 95, 99)
    assert Percentiles.of(array("d", [7])) == Percentiles(7, 7, 7)
    assert Percentiles.of(array("d")) is None


def test_a_run_of_two_jobs() -> None:
    tally = Tally()
    ended(tally, result(1100, 1500, 5), expected="Yes.")
    ended(tally, result(1300, 1300, 1), expected="no")
    summary = tally.summary(seconds=2.0)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (20, 8, 6)
    assert (summary.rows_per_second, summary.prompt_tokens_per_second) == (1.0, 10.0)
    assert summary.output_tokens_per_second == 3.0
    assert summary.ttft_ms == Percentiles(100, 300, 300)
    assert summary.tpot_ms == Percentiles(100, 100, 100)  # a single token has no time between tokens
    assert (summary.agreed, summary.expected) == (1, 2)
    assert summary.cost_per_million_tokens(price_per_hour=3.6) == pytest.approx(1e3 / 3)
    assert summary.cost_per_thousand_rows(price_per_hour=3.6) == pytest.approx(1.0)


def test_a_resumed_run_has_the_cost_of_all_runs() -> None:
    tally = Tally()
    before = result(1100, 1500, 6).model_copy(update={"timing": Timing(finished_ms=1500)})
    ended(tally, before, None, since_ms=2000)  # by a worker, while no run was under way
    ended(tally, result(2100, 2500, 4), None, since_ms=2000)
    summary = tally.summary(seconds=2.0, earlier=Spent(seconds=16.0, rows=8, output_tokens=32))
    assert (summary.completed, summary.output_tokens) == (2, 10)
    assert (summary.rows_per_second, summary.output_tokens_per_second) == (0.5, 2.0)
    assert summary.spent == Spent(18.0, rows=9, output_tokens=36)
    assert summary.cost_per_thousand_rows(price_per_hour=3600) == pytest.approx(2000)
    assert summary.cost_per_million_tokens(price_per_hour=3600) == pytest.approx(0.5e6)


def test_a_run_without_output_has_no_cost() -> None:
    summary = Tally().summary(0.0)
    assert summary.output_tokens_per_second == summary.rows_per_second == 0
    assert summary.cost_per_million_tokens(3.6) is summary.cost_per_thousand_rows(3.6) is None


@pytest.mark.parametrize(
    ("text", "expected", "same"),
    [(" 31  May 2025\n", "31 may 2025", True), ("Yes.", "yes", True), ("Yes", "no", False), ("", "x", False)],
)
def test_agreement_ignores_case_spaces_and_the_full_stop(text: str, expected: str, same: bool) -> None:
    assert agrees(text, expected) is same


def test_unknown_names_are_counted_in_bounded_memory() -> None:
    tally = Tally()
    note_names(tally.unknown, ["tempo", "\ud800", "x" * 10_000])
    for i in range(2 * MAX_UNKNOWN):
        note_names(tally.unknown, ["tempo", f"name-{i}"])
    assert tally.unknown["tempo"] == 2 * MAX_UNKNOWN + 1
    assert tally.unknown["\\ud800"] == 1
    assert tally.unknown["…"] > 0
    assert len(tally.unknown) <= MAX_UNKNOWN + 1
    assert max(map(len, tally.unknown)) == 100
