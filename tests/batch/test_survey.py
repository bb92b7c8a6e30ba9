"""A run over an input that has changed since its lines were answered: told before anything is done."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.workers.answering_worker import completion, read_rows, write_lines

from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import Survey
from millstream.batch.rows.batch_lines import custom_id_of, parse, read_row
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.output_rows import fault_row
from millstream.batch.rows.row_digests import row_id
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run_options import RunOptions
from millstream.errors import InvalidRequest
from millstream.wire.keys import Lane
from millstream.wire.state.queue_info import ModelIdentity

EARLIER = Path(__file__).with_name("earlier_run")  # the files of a run that recorded neither IN nor queue
LINES: tuple[Any, ...] = (
    completion("a", "one", max_tokens=3), completion("b", "two"), completion("failed"),
    completion("hot", temperature="hot"), "{bad", completion("a", "again"),
)  # fmt: skip


def begin(
    source: Path,
    journal: Journal,
    options: RunOptions,
    on_change: OnChange = OnChange.STOP,
    *,
    retry: bool = False,
    served: Mapping[str, ModelIdentity] | None = None,
) -> Survey:
    session = BatchSession(source, journal, replace(options, on_change=on_change, retry_failed=retry))
    session._served = served or {}
    survey = session.compare()
    session.prepare_files()
    return survey


def write_row(journal: Journal, number: int, data: bytes) -> None:
    """As a run would have left it."""
    try:
        fields = parse(data)
        custom_id = custom_id_of(fields)
        if number > 1 and custom_id == "a":
            raise LineFault("duplicate_custom_id", "x", "custom_id", "a")
        try:
            row = read_row(number, custom_id, fields, lane=Lane.BATCH, tenant="")
        except LineFault as fault:
            fault.custom_id = custom_id
            raise
    except LineFault as fault:
        journal.write((), [fault_row(number, fault, data)])
        return
    written = {
        "id": row_id(row.digest), "custom_id": custom_id, "response": {"status_code": 200}, "error": None,
    }  # fmt: skip
    if custom_id == "failed":
        journal.write((), [written | {"error": {"code": "x", "line": number}}])
    else:
        journal.write([written], ())


class Place:
    def __init__(self, folder: Path) -> None:
        self.source, self.out, self.errors = folder / "in", folder / "out", folder / "out.errors.jsonl"
        write_lines(self.source, LINES)
        with Journal(self.out, "model") as journal:
            begin(self.source, journal, RunOptions(queue="q"))
            for number, data in enumerate(self.source.read_bytes().splitlines(keepends=True), 1):
                write_row(journal, number, data)

    def begin(
        self,
        on_change: OnChange = OnChange.STOP,
        *,
        source: Path | None = None,
        queue: str | None = "q",
        model: str = "model",
        retry: bool = False,
        served: Mapping[str, ModelIdentity] | None = None,
    ) -> Survey:
        with Journal(self.out, model) as journal:
            options = RunOptions(queue=queue)
            return begin(source or self.source, journal, options, on_change, retry=retry, served=served)

    def rows(self) -> tuple[list[Any], list[Any]]:
        return (
            [row["custom_id"] for row in read_rows(self.out)],
            [row["error"]["line"] for row in read_rows(self.errors)],
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def edited(changes: Mapping[int, Any]) -> list[Any]:
    """The lines with other ones at these numbers."""
    return [changes.get(number, line) for number, line in enumerate(LINES, 1)]


@pytest.mark.parametrize(
    "lines",
    [
        LINES,
        [*LINES, completion("new"), "{another bad one"],
        [*(json.dumps(line, sort_keys=True) for line in LINES[:3]), *LINES[3:]],
        edited({2: LINES[2], 3: LINES[1]}),
    ],
    ids=["equal", "appended", "keys in another order", "in another order"],
)
def test_lines_that_are_the_same_are_not_told(place: Place, lines: list[Any]) -> None:
    write_lines(place.source, lines)
    survey = place.begin()
    assert (survey.changed, survey.missing, survey.lines) == (set(), 0, len(lines))
    assert survey.work is (len(lines) > len(LINES))


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, completion("a", "one", max_tokens=4)),
        (2, completion("b", "TWO")),
        (2, completion("b", "two") | {"url": "/v1/embeddings"}),
        (3, completion("failed", "better")),
    ],
)
def test_a_line_that_has_changed_stops_the_run(place: Place, number: int, line: object) -> None:
    write_lines(place.source, edited({number: line}))
    before = place.out.read_bytes(), place.errors.read_bytes()
    with pytest.raises(InvalidRequest, match=rf"1 line has changed since it was answered \({number}\)"):
        place.begin()
    assert (place.out.read_bytes(), place.errors.read_bytes()) == before
    kept = place.begin(OnChange.KEEP)
    assert (len(kept.changed), place.out.read_bytes(), place.errors.read_bytes()) == (1, *before)
    assert place.begin(OnChange.REDO).work
    assert sum(map(len, place.rows())) == len(LINES) - 1
    assert place.begin().changed == set()


@pytest.mark.parametrize("on_change", OnChange)
@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({4: completion("hot", temperature="hotter")}, [3, 5, 6]),
        ({4: completion("hot", model="m")}, [3, 5, 6]),
        ({5: "{bad in another way"}, [3, 4, 6]),
        ({5: completion("mended")}, [3, 4, 6]),
        ({6: completion("no longer twice")}, [3, 4, 5]),
        ({4: completion("inserted"), 5: LINES[3], 6: LINES[4], 7: LINES[5]}, [3, 4]),
    ],
)
def test_a_line_that_could_not_be_run_may_be_mended(
    place: Place, on_change: OnChange, changes: dict[int, Any], left: list[int]
) -> None:
    """Its row goes, whatever is to be done with answers; the others stay, wherever their lines are now."""
    lines = dict(enumerate(LINES, 1)) | changes
    write_lines(place.source, [lines[number] for number in sorted(lines)])
    survey = place.begin(on_change)
    assert survey.changed == set()
    assert place.rows() == (["a", "b"], left)


def test_many_changes_are_counted_and_the_first_shown(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [completion(str(i)) for i in range(1000)])
    with Journal(tmp_path / "out") as journal:
        for number, data in enumerate(source.read_bytes().splitlines(), 1):
            write_row(journal, number, data)
    write_lines(source, [completion(str(i), "another prompt") for i in range(1000)])
    with Journal(tmp_path / "out") as journal:
        with pytest.raises(InvalidRequest, match=r"^IN: 1,000 lines have changed .*\(1, 2, 3, 4, 5, …\)"):
            begin(source, journal, RunOptions())
        begin(source, journal, RunOptions(), OnChange.REDO)
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize(
    ("number", "line"), [(1, completion("a", "TWO", max_tokens=3)), (2, completion("b", "please"))]
)
def test_the_output_of_an_earlier_version_is_compared(tmp_path: Path, number: int, line: object) -> None:
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    source = tmp_path / "in.jsonl"
    lines = source.read_text().splitlines()
    with Journal(tmp_path / "out.jsonl") as journal:
        assert not begin(source, journal, RunOptions()).changed
    shutil.copytree(EARLIER, tmp_path, dirs_exist_ok=True)
    write_lines(source, [line if i == number else each for i, each in enumerate(lines, 1)])
    with Journal(tmp_path / "out.jsonl") as journal:
        with pytest.raises(InvalidRequest, match=rf"1 line has changed since it was answered \({number}\)"):
            begin(source, journal, RunOptions())
        begin(source, journal, RunOptions(), OnChange.REDO)
        assert not begin(source, journal, RunOptions()).changed
    mended = [completion("c", temperature=0), completion("mended"), completion("no longer twice")]
    write_lines(source, [*lines[:2], *mended])
    with Journal(tmp_path / "out.jsonl") as journal:
        assert len(begin(source, journal, RunOptions(), OnChange.KEEP).mended) == 3


def test_another_input_for_the_same_output(place: Place, tmp_path: Path) -> None:
    moved = place.source.rename(tmp_path / "renamed")
    assert place.begin(source=moved).missing == 0  # and is remembered
    write_lines(moved, LINES[1:])
    with pytest.raises(InvalidRequest, match=r"1 line has changed .*\(5\)"):  # the second of one custom_id
        place.begin(source=moved)
    other = write_lines(tmp_path / "other", [completion("b", "two"), completion("x")])
    with pytest.raises(
        InvalidRequest, match=r"OUT: was begun with .*renamed, and 5 of its 6 rows answer no line"
    ):
        place.begin(source=other)
    with pytest.raises(InvalidRequest, match="choose another OUT"):
        place.begin(OnChange.REDO, source=other)
    write_lines(moved, [completion("x"), completion("y")])
    with pytest.raises(InvalidRequest, match="OUT: 6 of its 6 rows answer no line of this IN"):
        place.begin(source=moved)
    assert place.begin(OnChange.KEEP, source=moved).work
    write_lines(moved, [])
    assert place.begin(source=moved).missing == 6


def test_the_models_of_lines_that_are_redone_are_counted(place: Place) -> None:
    write_lines(place.source, edited({2: completion("b", model="large")}))
    assert "large" not in place.begin(OnChange.KEEP).models
    assert place.begin(OnChange.REDO).models["large"] == 1


def test_a_path_that_is_not_utf_8(place: Place) -> None:
    source = place.source.rename(place.source.with_name(os.fsdecode(b"in\xff")))
    assert place.begin(source=source).found == len(LINES)
    other = write_lines(place.out.with_name("other"), [completion("x")])
    with pytest.raises(InvalidRequest, match=r"was begun with .*in\\xff, and 6 of its 6 rows"):
        place.begin(source=other)


@pytest.mark.parametrize("other", [{"queue": "r"}, {"queue": None}, {"model": "n" * 5000}])
def test_another_queue_or_model_for_the_same_output(place: Place, other: dict[str, Any]) -> None:
    name = next(iter(other))
    with pytest.raises(
        InvalidRequest, match=rf"^{name}: .*out was begun with .* 3 lines were answered so"
    ) as told:
        place.begin(**other)
    assert len(str(told.value)) < 800
    with Journal(place.out) as journal:
        before = journal.notes.own_id(read_row_digest(LINES[1]))
    assert place.begin(OnChange.REDO, **other).work
    with Journal(place.out) as journal:  # another job, though the line is the same
        assert journal.notes.own_id(read_row_digest(LINES[1])) != before
    assert place.rows() == ([], [4, 5, 6])
    assert not place.begin(**other).changed


OLD, NEW = ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)


def test_the_model_of_a_queue_has_been_replaced(place: Place) -> None:
    with Journal(place.out) as journal:
        journal.notes.serves("q", OLD)
        journal.notes.serves("elsewhere", OLD)
    served = {"q": NEW, "elsewhere": ModelIdentity()}
    with pytest.raises(
        InvalidRequest,
        match=r"^model: queue 'q' now has new \(111111111111\), and had old \(000000000000\) before. 3 lines "
        "were answered so: --redo-changed",
    ):
        place.begin(served=served)
    assert place.begin(served={"q": OLD}).changed == place.begin(served={"elsewhere": NEW}).changed == set()
    before = place.rows()
    assert not place.begin(OnChange.KEEP, served=served).work
    assert (place.rows(), place.begin(served=served).changed) == (before, set())
    assert place.begin(OnChange.REDO, served={"q": OLD}).work
    assert place.rows() == ([], [4, 5, 6])


def test_only_lines_of_a_replaced_model_are_computed_anew(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [completion("a"), completion("b", model="large"), completion("c")])
    with Journal(tmp_path / "out") as journal:
        for number, data in enumerate(source.read_bytes().splitlines()[:2], 1):
            write_row(journal, number, data)
        journal.notes.submits("default", [journal.notes.own_id(read_row_digest(completion("c")))])
        journal.notes.serves("default", OLD)
        journal.notes.serves("large", OLD)
    for served, message in (
        (
            {"default": NEW, "large": NEW},
            r"'default' .* \(and 1 more of its queues .*\). 3 lines were answered or",
        ),
        ({"default": NEW, "large": OLD}, r"'default' .* before. 2 lines were answered or submitted so"),
        ({"default": OLD, "large": NEW}, r"'large' .* before. 1 line was answered so"),
    ):
        with Journal(tmp_path / "out") as journal, pytest.raises(InvalidRequest, match=message):
            begin(source, journal, RunOptions(), served=served)
    with Journal(tmp_path / "out") as journal:
        begin(source, journal, RunOptions(), OnChange.KEEP, served={"default": NEW, "large": OLD})
        assert len(journal.notes.under_way) == 1
        begin(source, journal, RunOptions(), OnChange.REDO, served={"default": OLD, "large": OLD})
        assert (len(journal.notes.left), dict(journal.notes.under_way)) == (1, {})
        assert journal.notes.models == {"default": OLD, "large": OLD}
    assert [row["custom_id"] for row in read_rows(tmp_path / "out")] == ["b"]


def read_row_digest(line: dict[str, Any]) -> str:
    return read_row(1, line["custom_id"], line, lane=Lane.BATCH, tenant="").digest


def test_a_queue_that_is_given_a_name_is_the_same_queue(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", [completion("a"), completion("b", model="large")])
    with Journal(tmp_path / "out") as journal:
        begin(source, journal, RunOptions())
        for number, data in enumerate(source.read_bytes().splitlines(), 1):
            write_row(journal, number, data)
    with Journal(tmp_path / "out") as journal, pytest.raises(InvalidRequest, match="1 line was answered so"):
        begin(source, journal, RunOptions(queue="default"))


def test_failed_lines_may_be_mended_for_a_retry(place: Place) -> None:
    lines = edited({3: completion("failed", "better"), 4: completion("hot"), 5: completion("mended"), 6: ""})
    write_lines(place.source, lines)
    changed = write_lines(
        place.source.with_name("changed"), [completion("a", "changed", max_tokens=3), *lines[1:]]
    )
    with pytest.raises(InvalidRequest, match=r"1 line has changed since it was answered \(1\)"):
        place.begin(source=changed, retry=True)
    assert len(read_rows(place.errors)) == 4  # nothing was taken out
    assert place.begin(retry=True).work
    assert read_rows(place.errors) == []


def test_jobs_under_way_whose_lines_are_gone(tmp_path: Path) -> None:
    lines = [completion(name) for name in "abc"]
    source = write_lines(tmp_path / "in", lines)
    with Journal(tmp_path / "out") as journal:
        begin(source, journal, RunOptions())
        own_ids = [journal.notes.own_id(read_row_digest(line)) for line in lines]
        journal.notes.submits("default", own_ids)
    write_lines(source, [lines[0], completion("b", "changed"), *lines[2:]])
    with Journal(tmp_path / "out") as journal:
        assert begin(source, journal, RunOptions()).left == {own_ids[1]: "default"}
    with Journal(tmp_path / "out") as journal:
        assert len(begin(source, journal, RunOptions(queue="other"), OnChange.KEEP).left) == 3


@pytest.mark.parametrize(("model", "queue"), [("another", None), ("model", "other")])
def test_jobs_under_way_of_another_model_or_queue(tmp_path: Path, model: str, queue: str | None) -> None:
    source = write_lines(tmp_path / "in", [completion("a")])
    digest = read_row_digest(completion("a"))
    with Journal(tmp_path / "out", "model") as journal:
        begin(source, journal, RunOptions())
        journal.notes.submits("default", [first := journal.notes.own_id(digest)])
    with Journal(tmp_path / "out", model) as journal:
        with pytest.raises(InvalidRequest, match="1 line was answered or submitted so: --redo-changed"):
            begin(source, journal, RunOptions(queue=queue))
        assert begin(source, journal, RunOptions(queue=queue), OnChange.REDO).left == {first: "default"}
    with Journal(tmp_path / "out", model) as journal:  # killed before it could cancel them
        assert begin(source, journal, RunOptions(queue=queue)).left == {first: "default"}
        assert journal.notes.own_id(digest) != first
        journal.cancelled([first])
    with Journal(tmp_path / "out", model) as journal:
        assert not begin(source, journal, RunOptions(queue=queue)).left


@pytest.mark.parametrize("finished", [False, True])
def test_jobs_of_an_output_that_was_removed(tmp_path: Path, finished: bool) -> None:
    source, out = write_lines(tmp_path / "in", [completion("a")]), tmp_path / "out"
    with Journal(out) as journal:
        journal.spool.write_bytes(b"input")
        journal.notes.submits("default", [first := journal.notes.own_id("d" * 32)])
        if finished:
            journal.notes.ends(first)
            journal.finish()
    for _ in range(2):  # a run that is killed before it could cancel them leaves them to the next one
        out.unlink()
        with Journal(out) as journal:
            left = {} if finished else {first: "default"}
            assert begin(source, journal, RunOptions()).left == left
            assert not journal.spool.exists()
            assert not journal.notes.under_way


@pytest.mark.parametrize(
    ("line", "work"),
    [
        (completion("new"), True), (completion("a", "one", max_tokens=3), False),
        (completion("failed"), False), (completion("bad", temperature="hot"), False), ("{no json", False),
        ("", False),
    ],
)  # fmt: skip
def test_only_lines_that_a_worker_has_to_answer_are_work(place: Place, line: object, work: bool) -> None:
    write_lines(place.source, [*LINES, line])
    assert place.begin().work is work
