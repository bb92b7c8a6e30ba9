"""Every line of an input, checked as a run would read it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.workers.answering_worker import completion, write_lines

from millstream.batch.files.input_file import InputFile
from millstream.batch.input_check import SHOWN_LINES, InputCheck
from millstream.batch.run.run_options import RunOptions
from millstream.errors import InvalidRequest


def checked(path: Path, *lines: object, most: int = 10_000) -> InputCheck:
    found = InputCheck(RunOptions())
    with InputFile(write_lines(path / "in.jsonl", lines), most) as source:
        found.take(source, "in.jsonl")
    return found


def test_a_check_finds_what_a_run_would_refuse(tmp_path: Path) -> None:
    lines = (
        completion("a"),
        completion("a"),
        "{bad",
        "",
        completion("hot", temperature="hot"),
        completion("long", "x" * 500),
        completion("b", model="other"),
        {"url": "/v1/completions", "body": {}},
    )
    found = checked(tmp_path, *lines, most=400)
    assert (found.lines, found.bad) == (7, 5)
    assert [(bad.line, bad.code, bad.field) for bad in found.shown] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_json", None),
        (5, "invalid_field", "body.temperature"),
        (6, "line_too_long", None),
        (8, "missing_custom_id", "custom_id"),
    ]
    assert found.models == {"": 1, "other": 1}
    assert (found.findings.lines, found.findings.output_tokens) == (2, 2 * 16)


def test_a_check_shows_the_first_bad_lines(tmp_path: Path) -> None:
    found = checked(tmp_path, completion("good"), *["{bad"] * 50)
    assert found.bad == 50
    assert [bad.line for bad in found.shown] == list(range(2, 2 + SHOWN_LINES))


def test_a_check_refuses_what_is_no_jsonl(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no JSONL"):
        checked(tmp_path, *(f"{i},question,answer" for i in range(25)))
