"""Files are read, and pages rendered, when they are sent; whatever is wrong with one is told of that one."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from PIL import Image
from support.wire.image_files import png
from support.wire.pdf_files import pdf

from millstream import InvalidRequest, MissingExtra
from millstream.batch.media import page_process, pdf_pages
from millstream.batch.media.media_folder import MediaFolder, PageFormat
from millstream.batch.media.media_reader import MediaReader
from millstream.batch.media.page_process import PageProcess
from millstream.batch.media.pdf_pages import MachineProblem, PageProblem, page_count, rendered


def read(folder: MediaFolder, given: str) -> bytes:
    """In this process."""
    page = folder.page_of("", given)
    assert page.page
    return rendered(page.path, page.seen, page.page, folder.dpi, folder.page_format)


@pytest.mark.parametrize(("dpi", "made_as"), [(144, PageFormat.PNG), (72, PageFormat.JPEG)])
def test_a_page_is_an_image(tmp_path: Path, dpi: int, made_as: PageFormat) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(0.0, 1.0))
    media = MediaFolder.of(tmp_path, dpi, made_as)
    black, white = (Image.open(io.BytesIO(read(media, f"a.pdf#page={page}"))) for page in (1, 2))
    assert (black.format, black.mode, black.size) == (made_as.name, "RGB", (dpi, dpi // 2))
    assert black.getpixel((3, 3)) == (0, 0, 0)
    assert white.getpixel((3, 3)) == black.getpixel((dpi - 3, 3)) == (255, 255, 255)


def test_pages_that_cannot_be_rendered(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(0.0, 1.0))
    (tmp_path / "wide.pdf").write_bytes(pdf(0.0, width=14400, height=14400))
    (tmp_path / "no.pdf").write_bytes(b"%PDF-1.7 that is all")
    media = MediaFolder.of(tmp_path)
    for given, problem in {
        "a.pdf#page=3": "has 2 pages",
        "wide.pdf#page=1": "has 28800 x 28800 pixels at 144 dpi and may have 100,000,000; lower --pdf-dpi",
        "no.pdf#page=1": "is no PDF file that can be opened",
    }.items():
        with pytest.raises(PageProblem, match=problem):
            read(media, given)


def test_pages_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(*[0.5] * 7))
    assert page_count(tmp_path / "a.pdf") == 7
    monkeypatch.setitem(pdf_pages.__dict__, "importlib", _Without())
    with pytest.raises(MissingExtra, match=r'pip install "millstream\[pdf\]"'):
        page_count(tmp_path / "a.pdf")


class _Without:
    def import_module(self, name: str) -> None:
        raise ImportError(name)


async def test_files_and_pages_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(3))
    (tmp_path / "b.png").write_bytes(b"text")
    (tmp_path / "c.png").write_bytes(png(4))
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    names = ("a.png", "a.pdf#page=1", "b.png", "a.pdf#page=2", "c.png")
    pages = [media.page_of(f"messages[{place}]", name) for place, name in enumerate(names)]
    (tmp_path / "c.png").write_bytes(png(5) + b"!")
    reader = MediaReader(media, processes=1)
    try:
        found = await asyncio.gather(*map(reader.read, pages), return_exceptions=True)
    finally:
        await reader.close()
    assert found[0] == png(3)
    assert isinstance(found[1], bytes)
    assert found[1].startswith(b"\x89PNG")
    told = {error.field: error.problem for error in found if isinstance(error, InvalidRequest)}
    assert told == {
        "messages[2]": "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image (it begins as none of these); "
        "save it again",
        "messages[3]": "has 1 pages",
        "messages[4]": "has changed while the run was under way; start the same command again",
    }


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["killed", "stopped"])
async def test_a_process_that_ended_before_costs_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    reader = MediaReader(MediaFolder.of(tmp_path), processes=1)
    process = await PageProcess.start()
    reader._idle.append(process)
    process._process.send_signal(signal.SIGKILL if dies == "killed" else signal.SIGSTOP)
    monkeypatch.setattr(page_process, "PAGE_TIMEOUT_S", 5.0)
    try:
        assert (await reader.read(MediaFolder.of(tmp_path).page_of("", "a.pdf#page=1"))).startswith(
            b"\x89PNG"
        )
    finally:
        await reader.close()


@pytest.mark.slow
async def test_a_page_on_which_pdfium_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next page has its image all the same; a reply that nobody reads holds nobody up."""
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    page = media.page_of("", "a.pdf#page=1")
    reader = MediaReader(media, processes=1)
    render = PageProcess.render

    async def dying(process: PageProcess, *given: Any) -> bytes:
        process._process.kill()
        return await render(process, *given)

    monkeypatch.setattr(PageProcess, "render", dying)
    try:
        with pytest.raises(InvalidRequest, match="PDFium died on it, or took longer than 60 s"):
            await reader.read(page)
        monkeypatch.undo()
        assert (await reader.read(page)).startswith(b"\x89PNG")
    finally:
        await reader.close()


@pytest.mark.slow
async def test_the_end_of_a_process_waits_for_no_reader(tmp_path: Path) -> None:
    """It has sent more than the pipe and its buffer hold."""
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    page = media.page_of("", "a.pdf#page=1")
    process = await PageProcess.start()
    requests = process._process.stdin
    assert requests is not None
    for _ in range(40):
        requests.write(json.dumps([str(page.path), page.seen, 1, 300, "png"]).encode() + b"\n")
    await asyncio.sleep(1.5)
    async with asyncio.timeout(10):
        await process.end()


def _no_more_files(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("name", ["a.png", "a.pdf#page=1"])
async def test_a_machine_without_files_is_no_fault_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a.png").write_bytes(png(3))
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    page, reader = media.page_of("", name), MediaReader(media, processes=1)
    monkeypatch.setattr(pdf_pages.os, "open", _no_more_files)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", _no_more_files)
    with pytest.raises(MachineProblem, match=r"\(Too many open files\); no page is at fault: start the same"):
        await reader.read(page)


async def test_a_process_that_cannot_start_is_no_fault_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(MachineProblem, match="no process that renders pages can be started"):
        await MediaReader(media, processes=1).read(media.page_of("", "a.pdf#page=1"))


def _answers(*asked: object) -> list[bytes]:
    replies = io.BytesIO()
    page_process.serve(io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in asked)), replies)
    return replies.getvalue().split(b"\n")


def test_a_process_without_files_tells_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_pages.os, "open", _no_more_files)
    [reply, _] = _answers([str(tmp_path / "a.pdf"), [0, 0, 0, 0], 1, 72, "png"])
    lacking = f"{tmp_path / 'a.pdf'} cannot be opened (Too many open files)"
    assert json.loads(reply) == [0, "", lacking]


async def test_a_process_that_lacks_files_renders_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so of one page, and is kept."""
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    media = MediaFolder.of(tmp_path)
    reader = MediaReader(media, processes=1)

    class Process:
        said: ClassVar = [MachineProblem("no files"), png(1)]

        async def render(self, *_: object) -> bytes:
            if isinstance(said := self.said.pop(0), bytes):
                return said
            raise said

        async def end(self) -> None:
            """There is no process."""

    reader._idle.append(Process())  # type: ignore[arg-type]
    with pytest.raises(MachineProblem, match="no files; no page is at fault"):
        await reader.read(media.page_of("", "a.pdf#page=1"))
    assert await reader.read(media.page_of("", "a.pdf#page=1")) == png(1)


def test_a_process_answers_each_request(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf(0.0))
    page = MediaFolder.of(tmp_path).page_of("", "a.pdf#page=1")
    asked = [[str(page.path), page.seen, 1, 72, "png"], [str(page.path), page.seen, 2, 72, "png"]]
    asked.append(["/none.pdf", page.seen, 1, 72, "png"])
    head, rest = b"\n".join(_answers(*asked)).split(b"\n", 1)
    size, *problems = json.loads(head)
    assert (rest[:4], problems) == (b"\x89PNG", ["", ""])
    assert [json.loads(line) for line in rest[size:].splitlines()] == [
        [0, "has 1 pages", ""],
        [0, "cannot be read (No such file or directory)", ""],
    ]
