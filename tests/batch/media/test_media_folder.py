"""Files below a folder: which of them a line may name, and when it counts as changed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.wire.image_files import png
from support.wire.pdf_files import pdf

from millstream import InvalidRequest
from millstream.batch.media import media_folder, pdf_pages
from millstream.batch.media.media_folder import MediaFolder, PageFormat
from millstream.openai.messages.image_parts import NO_PATHS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.png").write_bytes(png())
    made = tmp_path / "media"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "a.png").write_bytes(png(1))
    (made / "scan.PDF").write_bytes(pdf(0.5))
    return made


def test_files_below_it(folder: Path) -> None:
    media = MediaFolder.of(folder)
    (folder / "link.png").symlink_to("sub/a.png")
    for given in ("sub/a.png", "./sub//a.png", str(folder / "sub" / "a.png"), "link.png"):
        page = media.page_of("", given)
        assert (page.path, page.page, page.most_bytes) == (folder / "sub" / "a.png", None, len(png(1)))
    assert media.page_of("", "scan.PDF#page=1").page == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("../secret.png", NO_PATHS),
        ("sub/../sub/a.png", NO_PATHS),
        ("/etc/passwd", NO_PATHS),
        ("out.png", NO_PATHS),
        ("outer/secret.png", NO_PATHS),
        ("none.png", "cannot be read below .* (No such file or directory)"),
        ("file:///etc/passwd", "No such file"),
        ("\0", "cannot be read"),
        ("\ud800", "cannot be read"),
        ("circle.png", "cannot be read"),
        ("n" * 300, "cannot be read"),
        ("sub", "is no regular file"),
        ("pipe.png", "is no regular file"),
        ("scan.PDF", "must name a page, counted from 1: scan.PDF#page=1"),
        ("scan.PDF#page=0", "must name a page"),
        ("sub/a.png#page=1", "only PDF files have pages"),
        ("large.png", "a whole message may have"),
    ],
)
def test_what_a_line_may_not_name(folder: Path, given: str, problem: str) -> None:
    (folder / "out.png").symlink_to("../secret.png")
    (folder / "outer").symlink_to("..")
    (folder / "circle.png").symlink_to("circle.png")
    os.mkfifo(folder / "pipe.png")
    with (folder / "large.png").open("wb") as file:
        file.truncate(17 * 1024**2)
    with pytest.raises(InvalidRequest, match=problem.replace("(", r"\(").replace(")", r"\)")) as caught:
        MediaFolder.of(folder).page_of("messages[0]", given)
    assert (caught.value.field, caught.value.value) == ("messages[0]", given)


def body(*paths: str) -> dict[str, object]:
    parts = [{"type": "image", "image": path} for path in paths]
    return {"messages": [{"role": "user", "content": parts}, "?", {"content": [{"type": "image_url"}, 7]}]}


def test_an_identity_is_of_path_and_file(folder: Path) -> None:
    media = MediaFolder.of(folder)
    image, page = (media.marks_of(body(path)) for path in ("sub/a.png", "scan.PDF#page=1"))
    assert media.marks_of(body("sub/./a.png")) == image != ""
    assert media.marks_of({"messages": 3}) == media.marks_of(body("data:,", "https://x")) == ""
    finer = MediaFolder.of(folder, 300)
    assert finer.marks_of(body("sub/a.png")) == image
    assert finer.marks_of(body("scan.PDF#page=1")) != page
    assert MediaFolder.of(folder, 144, PageFormat.JPEG).marks_of(body("scan.PDF#page=1")) != page
    os.utime(folder / "sub" / "a.png", (1, 1))
    assert media.marks_of(body("sub/a.png")) != image
    (folder / "sub" / "a.png").unlink()
    assert media.marks_of(body("sub/a.png")) == "null"


def test_a_folder_that_is_none(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="media: is no folder"):
        MediaFolder.of(folder / "scan.PDF")
    with pytest.raises(InvalidRequest, match="pdf_dpi: must be from 1 to 1200"):
        MediaFolder.of(folder, 0)


def test_pages_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    monkeypatch.setattr(media_folder, "can_render", pdf_pages.can_render.__wrapped__)
    media = MediaFolder.of(folder)
    with pytest.raises(InvalidRequest, match=r'which needs pip install "millstream\[pdf\]"'):
        media.page_of("", "scan.PDF#page=1")
    assert media.page_of("", "sub/a.png")
