"""Every line of an input, checked as a run would read it."""

from __future__ import annotations

from pathlib import Path

from support.workers.answering_worker import completion, write_lines

from millstream.batch.files.input_file import InputFile
from millstream.batch.input_check import SHOWN_LINES, InputCheck
from millstream.batch.run.run_options import RunOptions


def test_a_check_shows_the_first_bad_lines(tmp_path: Path) -> None:
    found = InputCheck(RunOptions())
    source = write_lines(tmp_path / "in.jsonl", [completion("good", model="other"), *["{bad"] * 50])
    with InputFile(source) as lines:
        found.take(lines, "in.jsonl")
    assert (found.lines, found.bad, found.models) == (51, 50, {"other": 1})
    assert [bad.line for bad in found.shown] == list(range(2, 2 + SHOWN_LINES))
