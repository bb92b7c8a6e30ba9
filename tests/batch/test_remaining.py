"""What a run has before it, told from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.answering import completion, write_lines

from millstream.batch.answers import fault_row
from millstream.batch.faults import LineFault
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.remaining import Remaining, look_ahead


@pytest.mark.parametrize(
    ("line", "work"),
    [
        (completion("new"), True),
        (completion("answered"), False),
        (completion("failed"), False),
        (completion("bad", temperature="hot"), False),
        ("{no json", False),
        (completion("long", "x" * 1000), False),
        ("", False),
    ],
)
def test_only_lines_that_a_worker_has_to_answer_are_work(tmp_path: Path, line: object, work: bool) -> None:
    source = write_lines(tmp_path / "in.jsonl", [completion("answered"), line])
    with Journal(tmp_path / "out.jsonl") as journal:
        answer = {"custom_id": "answered", "response": {"status_code": 200}, "error": None}
        journal.write([answer], [fault_row(2, LineFault("failed", "x", None, "failed"))])
    with Journal(tmp_path / "out.jsonl") as journal, InputFile(source, 500) as lines:
        assert look_ahead(lines, journal).work is work


def test_lines_and_the_models_of_those_that_are_left_are_counted(tmp_path: Path) -> None:
    lines = [
        completion("answered", model="gpt"),
        "",
        *(completion(name, model="gpt") for name in ("a", "b")),
        completion("c"),
        completion("d", model=None),
        completion("bad", temperature="hot", model="other"),
        completion("e", model=7),
        '{"custom_id": "f", "body": []}',
        "{no json",
        completion("long", "x" * 1000, model="other"),
    ]
    source = write_lines(tmp_path / "in.jsonl", lines)
    with Journal(tmp_path / "out.jsonl") as journal:
        journal.write([{"custom_id": "answered", "response": {"status_code": 200}, "error": None}], [])
    with Journal(tmp_path / "out.jsonl") as journal, InputFile(source, 500) as read:
        assert look_ahead(read, journal) == Remaining(10, True, {"gpt": 2, "": 3, "other": 1})
