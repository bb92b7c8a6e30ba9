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


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "\0"])
def test_documents_stay_below_their_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "out.jsonl").write_text(json.dumps(answer(name, "x")) + "\n")
    with pytest.raises(InvalidRequest, match="names a file that is not below"):
        JoinedDocuments(tmp_path / "out.jsonl").write(tmp_path / "into")


@pytest.mark.parametrize("row", ["text", "[]", '{"custom_id": "a"}', '{"custom_id": 1, "error": {"a": 1}}'])
def test_another_file_is_refused(tmp_path: Path, row: str) -> None:
    (tmp_path / "out.jsonl").write_text(f"{row}\n")
    with pytest.raises(InvalidRequest, match="line 1 is no row of a batch run"):
        JoinedDocuments(tmp_path / "out.jsonl")
