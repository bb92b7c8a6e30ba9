"""The files of a run: locked, mended after a crash, and read back for the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millstream.batch.journal import Journal
from millstream.errors import InvalidRequest


def answer(custom_id: str) -> dict[str, Any]:
    return {"id": "x", "custom_id": custom_id, "response": {"body": {}}, "error": None}


def failure(custom_id: str | None, line: int, code: str = "failed", *, ran: bool = True) -> dict[str, Any]:
    response = {"status_code": 500} if ran else None
    return {"id": "x", "custom_id": custom_id, "response": response, "error": {"code": code, "line": line}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "results.jsonl"


def test_the_files_stand_beside_each_other(out: Path) -> None:
    with Journal(out) as journal:
        journal.write([answer("a")], [failure("b", 2)])
    assert [path.name for path in sorted(out.parent.iterdir())] == [
        "results.errors.jsonl",
        "results.jsonl",
        "results.run.jsonl",
    ]
    assert json.loads(out.read_text())["custom_id"] == "a"


def test_a_later_run_knows_what_is_answered(out: Path) -> None:
    with Journal(out) as first:
        first.write([answer("a")], [failure("b", 2), failure(None, 3, "invalid_json", ran=False)])
        first.write((), [failure("a", 4, "duplicate_custom_id", ran=False)])
    with Journal(out) as second:
        assert [second.has_id(name) for name in "abc"] == [True, True, False]
        assert [second.has_line(line) for line in (1, 2, 3, 4)] == [False, False, True, True]
        assert second.own_id("c", "d") == first.own_id("c", "d")


def test_a_removed_output_begins_a_new_run(out: Path) -> None:
    with Journal(out) as first:
        first.write([answer("a")], [failure("b", 2)])
    out.unlink()
    with Journal(out) as second:
        assert not second.has_id("b")
        assert second.run != first.run
        assert second.errors.read_bytes() == b""


@pytest.mark.parametrize("torn", [b'{"custom_id":"b","resp', b'{"custom_id":"b","response":{}}', b"\xf0\x9f"])
def test_a_torn_last_line_is_cut(out: Path, torn: bytes) -> None:
    with Journal(out) as journal:
        journal.write([answer("a")], [failure("c", 3)])
    whole, failed = out.read_bytes(), journal.errors.read_bytes()
    out.write_bytes(whole + torn)
    journal.errors.write_bytes(failed + torn)
    journal.run_file.write_bytes(journal.run_file.read_bytes() + torn)
    with Journal(out) as later:
        assert later.run == journal.run
        assert later.has_id("a")
        assert not later.has_id("b")
    assert out.read_bytes() == whole
    assert journal.errors.read_bytes() == failed


@pytest.mark.parametrize("text", ["my thesis\nchapter 1\n", '{"custom_id": "a", "body": {}}\n', "[]\n"])
def test_a_file_of_another_kind_is_left_alone(out: Path, text: str) -> None:
    out.parent.mkdir()
    out.write_text(text + "torn")
    with (
        pytest.raises(InvalidRequest, match="line 1 is no row of a batch run; choose another file"),
        Journal(out),
    ):
        pass
    assert out.read_text() == text + "torn"


def test_two_runs_cannot_write_one_file(out: Path) -> None:
    with Journal(out), pytest.raises(InvalidRequest, match="another run is writing this file"), Journal(out):
        pass
    with Journal(out):
        pass


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^OUT: cannot be written: Is a directory"), Journal(tmp_path):
        pass


def test_a_run_goes_on_with_its_model_only(out: Path) -> None:
    with Journal(out, "small"):
        pass
    with pytest.raises(InvalidRequest, match="was begun with small"), Journal(out, "large"):
        pass
    with Journal(out, "small"), pytest.raises(InvalidRequest, match="another run"), Journal(out, "small"):
        pass
    with Journal(out):  # on a server whose models it does not know
        pass


def test_a_retry_makes_new_jobs_of_what_failed_and_of_nothing_else(out: Path) -> None:
    with Journal(out) as journal:
        ids = {name: journal.own_id(name, "d") for name in "abc"}
        journal.write([answer("a")], [failure("b", 2), failure("c", 3, "invalid_field", ran=False)])
        journal.write((), [failure("a", 4, "duplicate_custom_id", ran=False)])
    with Journal(out) as journal:
        assert journal.retry_failed() == 3
        assert [journal.has_id(name) for name in "abc"] == [True, False, False]
        assert not journal.has_line(4)
        assert journal.own_id("b", "d") not in ids.values()
        assert journal.own_id("c", "d") == ids["c"]
        second_try = journal.own_id("b", "d")
    with Journal(out) as journal:  # interrupted, and gone on without asking for another retry
        assert journal.own_id("b", "d") == second_try
        assert not journal.has_id("b")
        assert journal.errors.read_bytes() == b""
