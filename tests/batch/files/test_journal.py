"""The files of a run: locked, mended after a crash, and read back for the next one."""

from __future__ import annotations

import errno
import json
import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from support.limits import no_file_above

from millstream.batch.files.journal import Journal, WriteFailed
from millstream.batch.files.runfile import identity
from millstream.batch.rows.row_digests import row_id
from millstream.errors import InvalidRequest
from millstream.wire.state.queue_info import ModelIdentity


def answer(custom_id: str) -> dict[str, Any]:
    return {"id": "x", "custom_id": custom_id, "response": {"body": {}}, "error": None}


def failure(custom_id: str | None, line: int, code: str = "failed", *, ran: bool = True) -> dict[str, Any]:
    response = {"status_code": 500} if ran else None
    return {"id": "x", "custom_id": custom_id, "response": response, "error": {"code": code, "line": line}}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    return tmp_path / "deep" / "results.jsonl"


def assert_refused(path: Path, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem), Journal(path):
        pass


def test_rows_are_taken_out_of_the_file_that_a_link_names(out: Path, tmp_path: Path) -> None:
    out.symlink_to(tmp_path / "elsewhere")
    with Journal(out) as journal:
        journal.write([answer("a"), answer("b")], ())
        out.chmod(0o640)
        journal.drop([identity("a")])
        with no_file_above(0), pytest.raises(WriteFailed, match="File too large"):
            journal.drop([identity("c")])
    assert [json.loads(line)["custom_id"] for line in out.read_bytes().splitlines()] == ["b"]
    assert out.is_symlink()
    assert stat.S_IMODE(out.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.glob("**/*.tmp")] == []


def test_a_removed_output_begins_a_new_run(out: Path) -> None:
    with Journal(out) as first:
        first.write([answer("a")], [failure("b", 2)])
    out.unlink()
    with Journal(out) as second:
        assert not second.has_id("b")
        assert second.notes.run != first.notes.run
        assert second.errors.read_bytes() == b""


def test_the_model_of_a_queue_is_recorded_with_the_run(out: Path) -> None:
    old, new = ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)
    with Journal(out) as journal:
        for model in (ModelIdentity("unknown"), old, ModelIdentity("old, by another path", old.digest)):
            journal.notes.serves("default", model)
        journal.notes.serves("large", new)
    with Journal(out) as journal:
        assert journal.notes.models == {"default": old, "large": new}
        journal.notes.serves("default", new)
    with Journal(out) as journal:
        assert journal.notes.models == {"default": new, "large": new}
    out.unlink()
    with Journal(out) as journal:
        assert not journal.notes.models


@pytest.mark.parametrize("note", [{"queue": 1}, {"model": None}, {"model_digest": 7}])
def test_a_model_of_another_kind_is_told(out: Path, note: dict[str, Any]) -> None:
    with Journal(out) as journal:
        journal.notes.serves("default", ModelIdentity("old", "0" * 32))
    first, last = journal.run_file.read_text().splitlines()
    journal.run_file.write_text(f"{first}\n{json.dumps(json.loads(last) | note)}\n")
    assert_refused(out, "line 2 is no row of a batch run")


@pytest.mark.parametrize("name", ["results.jsonl", "results.errors.jsonl", "results.run.jsonl"])
def test_a_death_in_the_middle_of_any_write_loses_that_row_only(out: Path, name: str) -> None:
    with Journal(out, "small") as journal:
        journal.write([answer("a"), answer("bé")], [failure("c", 3), failure(None, 4, ran=False)])
        begun, own_id = journal.notes.run, journal.notes.own_id("d")
    path, ids = out.with_name(name), ["a", "bé", "c"]
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        with Journal(out, "small") as later:
            lost = [custom_id for custom_id in ids if not later.has_id(custom_id)]
            kept_run = (later.notes.run, later.notes.own_id("d")) == (begun, own_id)
        rows_left = whole[:size].count(b"\n")
        assert path == journal.run_file or path.read_bytes() == whole[: whole[:size].rfind(b"\n") + 1]
        assert kept_run is (path != journal.run_file or rows_left == 1)
        assert lost == {out: ids[:2], journal.errors: ids[2:]}.get(path, [])[rows_left:]
        journal.run_file.write_bytes(whole if path == journal.run_file else journal.run_file.read_bytes())


def test_a_full_disk_is_told_and_leaves_whole_rows(out: Path) -> None:
    with Journal(out) as journal:
        journal.write([answer("a")], ())
        with no_file_above(100_000), pytest.raises(WriteFailed, match=r"results\.jsonl .*: File too large"):
            journal.write([answer("b" * 200_000)], ())
    assert [json.loads(line)["custom_id"] for line in out.read_bytes().splitlines()] == ["a"]
    with Journal(out) as later:
        assert later.has_id("a")
        later.write([answer("c")], ())
    assert len(out.read_bytes().splitlines()) == 2


def test_a_disk_that_is_full_from_the_start(out: Path) -> None:
    with (
        pytest.raises(WriteFailed, match=r"results\.run\.jsonl cannot be written"),
        no_file_above(0),
        Journal(out),
    ):
        pass
    with Journal(out) as later:
        assert later.notes.run


@pytest.mark.parametrize("name", ["a/", "a/b", "a\0", ".", "a" * 256, "\ud800", 3], ids=ascii)
def test_a_run_file_that_names_no_file_as_its_owner_is_refused(name: object, out: Path) -> None:
    run_file = out.parent / "results.run.jsonl"
    run_file.write_text(json.dumps({"run": "0123456789abcdef", "model": None, "out": name}) + "\n")
    assert_refused(out, "run file")


@pytest.mark.parametrize("name", ["results.errors.jsonl", "results.run.jsonl"])
def test_a_foreign_file_beside_a_new_output_is_left_alone(out: Path, name: str) -> None:
    other = out.with_name(name)
    other.write_text('{"custom_id": "mine", "errors": 0}\n')
    assert_refused(out, "line 1 is no row of a batch run")
    assert other.read_text() == '{"custom_id": "mine", "errors": 0}\n'


def test_the_error_file_of_a_run_is_no_output(out: Path) -> None:
    with Journal(out) as journal:
        journal.write((), [failure("b", 2)])
    assert_refused(journal.errors, "is no row of a batch run")


def test_outputs_that_would_share_their_other_files_are_refused(out: Path) -> None:
    with Journal(out) as journal:
        journal.write([answer("a")], [failure("b", 2)])
    assert_refused(out.with_suffix(""), r"belongs to the run of results\.jsonl")
    with Journal(out) as later:
        assert later.notes.run == journal.notes.run
        assert later.has_id("b")
    moved = out.rename(out.with_suffix(".txt"))  # a run may be renamed
    with Journal(moved) as later:
        assert later.notes.run == journal.notes.run


def test_outputs_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "is no regular file")
    (tmp_path / "out.errors.jsonl").mkdir()
    assert_refused(tmp_path, r"^OUT: cannot be written: Is a directory")
    assert_refused(tmp_path / "out", r"cannot be written: Is a directory: out\.errors\.jsonl")
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file" / "out", "file is no folder")


def test_what_is_known_takes_little_memory_however_long_the_ids(out: Path) -> None:
    with Journal(out) as journal:
        journal.write((answer(f"{i:0500}") for i in range(5000)), ())
    tracemalloc.start()
    try:
        with Journal(out) as later:
            held, _ = tracemalloc.get_traced_memory()
            assert later.has_id(f"{4999:0500}")
    finally:
        tracemalloc.stop()
    assert held < 5000 * 150 + 100_000


@pytest.mark.parametrize("text", ["my thesis\nchapter 1\n", '{"custom_id": "a", "body": {}}\n', "[]\n"])
def test_a_file_of_another_kind_is_left_alone(out: Path, text: str) -> None:
    out.write_text(text + "torn")
    assert_refused(out, "line 1 is no row of a batch run; choose another file")
    assert out.read_text() == text + "torn"


@pytest.mark.parametrize("line", [[], {}, "3", None])
def test_an_error_row_of_another_kind_is_told(out: Path, line: object) -> None:
    with Journal(out):
        pass
    row = {"custom_id": None, "response": None, "error": {"code": "x", "line": line}}
    out.with_suffix(".errors.jsonl").write_text(json.dumps(row) + "\n")
    assert_refused(out, "error file: line 1 is no row of a batch run")


def test_jobs_under_way_are_known_without_the_input(out: Path) -> None:
    with Journal(out) as journal:
        own_ids = [journal.notes.own_id(f"{i:02}" * 16) for i in range(5)]
        journal.notes.submits("one", own_ids[:3])
        journal.notes.submits("two", own_ids[3:])
        journal.write(
            [answer("c0") | {"id": row_id("00" * 16)}], [failure("c3", 4) | {"id": row_id("03" * 16)}]
        )
        left = {own_ids[1]: "one", own_ids[2]: "one", own_ids[4]: "two"}
    with Journal(out, begins=False) as later:
        assert later.notes.under_way == left
        later.cancelled(own_ids[1:2])
    with Journal(out) as later:
        assert later.notes.under_way == {own_id: left[own_id] for own_id in (own_ids[2], own_ids[4])}
        again = later.notes.own_id("01" * 16)
        assert again == f"{own_ids[1]}.1"
        later.notes.submits("one", [again])
        later.notes.ends(own_ids[4])
        assert later.notes.under_way == {own_ids[2]: "one", again: "one"}


def test_only_a_run_that_is_there_is_taken_up(out: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no results\.run\.jsonl beside it"):
        Journal(out, begins=False).__enter__()
    with Journal(out) as journal:
        journal.notes.submits("one", [journal.notes.own_id("0" * 32)])
    out.unlink()
    with Journal(out, begins=False) as later:
        assert len(later.notes.under_way) == 1
    assert not out.exists()


def test_a_retry_makes_new_jobs_only_of_what_failed(out: Path) -> None:
    digests = {name: name * 32 for name in "abc"}
    rows = {name: {"id": row_id(digest)} for name, digest in digests.items()}
    with Journal(out) as journal:
        ids = {name: journal.notes.own_id(digest) for name, digest in digests.items()}
        journal.notes.submits("one", list(ids.values())[:2])
        journal.write([answer("a") | rows["a"]], [failure("b", 2) | rows["b"]])
        journal.write((), [failure("c", 3, "invalid_field", ran=False) | rows["c"]])
        journal.write((), [failure("a", 4, "duplicate_custom_id", ran=False)])
    with Journal(out) as journal:
        keys = journal.failures(failed=True, incomplete=True)
        assert keys == {identity("b"), identity("c"), 4}
        journal.retry(keys)
        assert [journal.has_id(name) for name in "abc"] == [True, False, False]
        assert not journal.has_line(4)
        second_try = journal.notes.own_id(digests["b"])
        assert second_try not in ids.values()
        assert journal.notes.own_id(digests["c"]) == ids["c"]
    with Journal(out) as journal:  # interrupted, and gone on without asking for another retry
        assert journal.notes.own_id(digests["b"]) == second_try
        assert not journal.has_id("b")
        assert journal.errors.read_bytes() == b""
        assert journal.notes.under_way == {}  # the job that failed has ended, though its row is gone


def test_cut_answers_are_retried_apart(out: Path) -> None:
    digest = row_id("b" * 32)
    with Journal(out) as journal:
        first = journal.notes.own_id("b" * 32)
        journal.write((), [failure("a", 1), failure("b", 2, "incomplete_output") | {"id": digest}])
        journal.write((), [failure(None, 3, "invalid_json", ran=False)])
    with Journal(out) as journal:
        assert journal.failures(failed=True, incomplete=False) == {identity("a"), 3}
        assert journal.failures(failed=False, incomplete=True) == {identity("b")}
        assert journal.failures(failed=False, incomplete=False) == set()
        journal.retry(journal.failures(failed=False, incomplete=True))
        assert [journal.has_failure("a"), journal.has_id("b"), journal.has_line(3)] == [True, False, True]
        assert journal.notes.own_id("b" * 32) == f"{first}.1"
        assert journal.cut == set()
        journal.write((), [failure("c", 4)])  # the file is open again
    with Journal(out) as journal:
        assert [journal.has_id(name) for name in "abc"] == [True, False, True]


def test_a_retry_takes_up_nothing_that_has_its_answer(out: Path) -> None:
    with Journal(out) as journal:  # the emptying of the error file was lost with the machine's power
        journal.write([answer("a")], [failure("a", 1)])
    with Journal(out) as journal:
        journal.retry(journal.failures(failed=True, incomplete=False))
        assert journal.has_id("a")


def test_a_retry_is_on_disk_before_its_old_row_is_removed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(out) as journal:
        journal.write((), [failure("b", 2) | {"id": row_id("b" * 32)}])
        synced: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
        journal.retry(journal.failures(failed=True, incomplete=False))
    assert synced[0] == str(journal.notes.path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_a_file_system_that_syncs_files_and_no_folders_will_do(
    out: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sync = os.fsync

    def refuse_folders(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    with Journal(out) as journal:
        journal.write([answer("a")], ())
        if number == errno.EINVAL:
            journal.sync()
        else:  # a disk that fails is another matter
            with pytest.raises(WriteFailed, match="Input/output error"):
                journal.sync()


def test_an_answer_is_found_at_its_place_while_it_stands_there(out: Path) -> None:
    rows = [answer(name) for name in ("a", "ö" * 50_000, "c")]
    with Journal(out) as journal:
        places = [journal.write([row], [failure("f", 1)]) for row in rows]
        assert [journal.answer_at(place) for place in places] == rows
        with out.open("r+b") as file:  # another program's
            file.write(b'{"custom_id":1}\n')
            file.truncate(places[2] + 9)
        assert [journal.answer_at(place) for place in places] == [None, rows[1], None]
        assert [journal.answer_at(place) for place in (1, places[1] + 1, 10**6)] == [None] * 3
