"""Whether a run has work for a worker, told from its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.answering import completion, write_lines

from millstream.batch.answers import fault_row
from millstream.batch.faults import LineFault
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.remaining import anything_left


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
        assert anything_left(lines, journal) is work


def test_it_reads_no_further_than_it_must(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [completion(str(i)) for i in range(1000)])
    with Journal(tmp_path / "out.jsonl") as journal, InputFile(source) as lines:
        assert anything_left(lines, journal)
        assert lines.lines == 1
