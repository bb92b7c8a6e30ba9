"""Documents to lines, and answers to documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.wire.image_files import png
from support.wire.pdf_files import pdf
from support.workers.answering_worker import write_lines

from millstream import InvalidRequest
from millstream.batch.documents.joined_documents import NO_ROW, JoinedDocuments
from millstream.batch.documents.page_lines import PageLines, prompt_of


def test_a_line_for_each_page(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b" / "a.png").write_bytes(png())
    (tmp_path / "b" / "c.Pdf").write_bytes(pdf(0.0, 1.0))
    (tmp_path / "no.txt").write_text("text")
    (tmp_path / "no.pdf").write_text("text")
    names = ("a.png", "b/a.png", "b/c.Pdf", "b/../a.png", "no.txt", "no.pdf", "none.png")
    made = PageLines.of([tmp_path / name for name in names], "read", "m", 9)
    lines = list(made.lines())
    ids = [(line["custom_id"], line["body"]["messages"][0]["content"][0]) for line in lines]
    assert [(one, image["image_url"]["url"]) for one, image in ids] == [
        ("a.png", "a.png"),
        ("b/a.png", "b/a.png"),
        ("c.Pdf#page=1", "b/c.Pdf#page=1"),
        ("c.Pdf#page=2", "b/c.Pdf#page=2"),
    ]
    assert (made.root, made.pages, list(made.problems)) == (tmp_path, 4, ["no.txt", "no.pdf", "none.png"])
    assert {one: lines[0]["body"][one] for one in ("model", "max_tokens")} == {"model": "m", "max_tokens": 9}
    assert lines[0]["body"]["messages"][0]["content"][1] == {"type": "text", "text": "read"}


def test_a_prompt_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("from a file\n")
    assert (prompt_of("text"), prompt_of(f"@{tmp_path / 'p'}")) == ("text", "from a file\n")
    with pytest.raises(InvalidRequest, match="--prompt: cannot be read: No such file"):
        prompt_of(f"@{tmp_path / 'q'}")


def answer(custom_id: str, text: str) -> dict[str, Any]:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def failed(custom_id: str | None) -> dict[str, Any]:
    return {"custom_id": custom_id, "response": None, "error": {"code": "invalid_field", "line": 1}}


def test_documents_are_joined(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    pages = [answer(f"x/a.pdf#page={page}", f"text {page}\n") for page in (10, 2, 1)]
    write_lines(out, [*pages, answer("b.png", "b")])
    write_lines(tmp_path / "out.errors.jsonl", [failed("x/a.pdf#page=4"), failed("c.png"), failed(None)])
    joined = JoinedDocuments(out)
    written = joined.write(tmp_path / "into")
    assert [path.relative_to(tmp_path / "into").as_posix() for path in written] == [
        "x/a.pdf.md", "b.png.md", "c.png.md",
    ]  # fmt: skip
    text = written[0].read_text().splitlines()
    assert text[:5] == ["text 1", "", "text 2", "", "<!-- page 3 has no answer (no_row) -->"]
    assert text[6] == "<!-- page 4 has no answer (invalid_field) -->"
    assert text[-1] == "text 10"
    assert written[2].read_text() == "<!-- page 0 has no answer (invalid_field) -->\n"
    assert {name: its for name, its in joined.failed.items() if its} == {
        "x/a.pdf": {page: "invalid_field" if page == 4 else NO_ROW for page in (3, 4, 5, 6, 7, 8, 9)},
        "c.png": {0: "invalid_field"},
    }


def unfinished(folder: Path, *pages: int) -> Path:
    """The output of a run that reads seven pages of a.pdf and an image, and has answered these pages."""
    names = [f"a.pdf#page={page}" for page in range(1, 8)]
    write_lines(folder / "in.jsonl", [*({"custom_id": name} for name in (*names, "b.png", 3)), "text"])
    run = {"run": "r", "model": None, "out": "out.jsonl"}
    other, begun = ({"in": str(folder / name), "queue": None, "model": None} for name in ("x", "in.jsonl"))
    write_lines(folder / "out.run.jsonl", [run, other, begun, {"queue": "q", "jobs": ["1"]}])
    write_lines(folder / "out.jsonl", [answer(f"a.pdf#page={page}", f"text {page}") for page in pages])
    return folder / "out.jsonl"


def cut(path: Path, row: dict[str, Any]) -> bytes:
    """The file now, with a part of one more row."""
    with path.open("ab") as file:
        file.write(json.dumps(row).encode()[:-5])
    return path.read_bytes()


def test_pages_that_an_unfinished_run_has_not_answered(tmp_path: Path) -> None:
    """Its files may be written just now: each may end with a part of a row, and is left as it is."""
    out = unfinished(tmp_path, 2, 1)
    write_lines(tmp_path / "out.errors.jsonl", [failed("a.pdf#page=4")])
    paths = [out, tmp_path / "out.errors.jsonl", tmp_path / "out.run.jsonl"]
    before = [
        cut(path, {"custom_id": "a.pdf#page=5", "in": "y", "queue": None, "error": 1}) for path in paths
    ]
    joined = JoinedDocuments(out)
    assert joined.failed == {
        "a.pdf": {3: NO_ROW, 4: "invalid_field", 5: NO_ROW, 6: NO_ROW, 7: NO_ROW},
        "b.png": {0: NO_ROW},
    }
    assert (joined.torn, joined.has_lines) == (paths[:2], True)
    (tmp_path / "b.png.md").write_text("of an earlier run")
    [text] = (path.read_text() for path in joined.write(tmp_path))
    assert text.startswith("text 1\n\ntext 2\n\n<!-- page 3 has no answer (no_row) -->")
    assert text.endswith("<!-- page 7 has no answer (no_row) -->\n")
    assert (
        tmp_path / "b.png.md"
    ).read_text() == "of an earlier run"  # a document without a row is not written
    assert [path.read_bytes() for path in paths] == before


def test_lines_of_a_run_may_be_given_or_away(tmp_path: Path) -> None:
    """Without them the pages behind the last row are not known, and that is said."""
    out = unfinished(tmp_path, 1, 3)
    moved = (tmp_path / "in.jsonl").rename(tmp_path / "moved.jsonl")
    joined = JoinedDocuments(out)
    assert (joined.has_lines, dict(joined.failed)) == (False, {"a.pdf": {2: NO_ROW}})
    joined = JoinedDocuments(out, moved)
    assert (joined.has_lines, list(joined.failed["a.pdf"])) == (True, [2, 4, 5, 6, 7])
    (tmp_path / "out.run.jsonl").unlink()
    assert not JoinedDocuments(out).has_lines
    moved.rename(tmp_path / "out.run.stdin")  # of standard input a run keeps a copy
    assert len(JoinedDocuments(out).failed["a.pdf"]) == 5


def test_lines_that_the_run_refuses_are_no_pages(tmp_path: Path) -> None:
    out = unfinished(tmp_path, *range(1, 8))
    with (tmp_path / "in.jsonl").open("ab") as lines:
        lines.write(b"[" * 100_000 + b"\n7\n")
        lines.write(b'{"custom_id": "\\ud800"}\n{"custom_id": "%s"}\n' % (b"x" * 600))
    assert dict(JoinedDocuments(out).failed) == {"a.pdf": {}, "b.png": {0: NO_ROW}}


def test_rows_that_are_not_packed_yet_are_read(tmp_path: Path) -> None:
    unfinished(tmp_path, *range(1, 8)).rename(tmp_path / "out.jsonl.gz.part")
    assert JoinedDocuments(tmp_path / "out.jsonl.gz").failed["b.png"] == {0: NO_ROW}


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "\0"])
def test_documents_stay_below_their_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "out.jsonl").write_text(json.dumps(answer(name, "x")) + "\n")
    with pytest.raises(InvalidRequest, match="names a file that is not below"):
        JoinedDocuments(tmp_path / "out.jsonl").write(tmp_path / "into")


@pytest.mark.parametrize("end", ["\n", "", "\n{}\n"])
@pytest.mark.parametrize("row", ["text", "[]", '{"custom_id": "a"}', '{"custom_id": 1, "error": {"a": 1}}'])
def test_another_file_is_refused(tmp_path: Path, row: str, end: str) -> None:
    (tmp_path / "out.jsonl").write_text(f"{row}{end}")
    with pytest.raises(InvalidRequest, match="line 1 is no row of a batch run"):
        JoinedDocuments(tmp_path / "out.jsonl")


def test_a_part_of_a_row_stands_at_the_end_only(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text('{"custom_id": "a\n')
    with pytest.raises(InvalidRequest, match="line 1 is no row of a batch run"):
        JoinedDocuments(tmp_path / "out.jsonl")
