"""The summary of a batch run, as people read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millstream.batch.files.journal import Journal
from millstream.batch.run.tally import Percentiles, Summary
from millstream.cli.display.batch_summary import print_summary

DONE = Summary(
    completed=3, failed=0, skipped=0, skipped_failed=0, prompt_tokens=30, cached_tokens=0, output_tokens=48,
    seconds=2.0, ttft_ms=None, tpot_ms=None, agreed=0, expected=0, unknown_fields=(), causes=(),
)  # fmt: skip


def printed(summary: Summary, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Texts by the names of their lines."""
    with Journal(folder / "out.jsonl") as journal:
        print_summary(summary, journal, None)
    return {line[:10].strip(): line[10:] for line in capsys.readouterr().out.splitlines()}


def test_durations_have_the_unit_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = replace(DONE, ttft_ms=Percentiles(999.0, 1000.0, 156_350.0))
    assert printed(summary, tmp_path, capsys)["TTFT"] == "P50 999 ms   P95 1.00 s   P99 156 s"


def test_rows_computed_before_the_run_are_no_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speed = printed(DONE, tmp_path, capsys)["speed"]
    assert speed == "– rows/s (0 computed), – prompt tokens/s, – output tokens/s"


def test_long_names_of_files_are_not_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / ("a" * 60) / ("b" * 60)
    folder.mkdir(parents=True)
    lines = printed(DONE, folder, capsys)
    assert (lines["answers"], lines["errors"]) == (f"{folder}/out.jsonl", f"{folder}/out.errors.jsonl (none)")


def test_groups_and_what_they_share_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "groups" not in printed(DONE, tmp_path, capsys)
    summary = replace(DONE, groups=12, shared_tokens=38_400)
    assert printed(summary, tmp_path, capsys)["groups"] == "12 groups sharing ~38,400 tokens"
    nothing_sent = replace(summary, reused=summary.completed)
    assert "groups" not in printed(nothing_sent, tmp_path, capsys)
