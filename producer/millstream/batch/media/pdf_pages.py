"""Renders pages of PDF files.

pypdfium2 and Pillow are imported when they are needed.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import os
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from millstream.errors import MillstreamError, MissingExtra

MAX_DPI = 1200
MAX_PIXELS = 100_000_000  # of a page, as workers take them
JPEG_QUALITY = 90
INSTALL = 'pip install "millstream[pdf]"'
_SUFFIX = ".pdf"
_NEEDED = ("pypdfium2", "PIL")
_OF_MACHINE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN))


class PageProblem(ValueError):
    """A page cannot be rendered; the text says why."""


class MachineProblem(MillstreamError):
    """This machine lacks what reading takes, whichever file it is: that ends a run, and is no row's error."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what}; no page is at fault: start the same command again")


def is_pdf(name: str) -> bool:
    return name.lower().endswith(_SUFFIX)


@cache
def can_render() -> bool:
    """True if this installation has what pages take. Nothing is imported."""
    try:
        return all(importlib.util.find_spec(name) for name in _NEEDED)
    except ValueError:  # one is hidden
        return False


def page_count(path: Path) -> int:
    """The pages of a file, none of which is rendered. Raises PageProblem, MissingExtra."""
    with path.open("rb") as file, _Document(file) as document:
        return len(document.pages)


def rendered(path: Path, seen: tuple[int, ...], page: int, dpi: int, page_format: str) -> bytes:
    """A page as an image file. Raises PageProblem, OSError, MissingExtra, MachineProblem."""
    with opened(path, seen) as file, _Document(file) as document:
        return document.image(page, dpi, page_format)


def seen_of(found: os.stat_result) -> tuple[int, ...]:
    """Identifies a file between two looks at it."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def opened(path: Path, seen: tuple[int, ...]) -> BinaryIO:
    """The file that was looked at. Raises OSError, PageProblem if it is another one now; MachineProblem."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in _OF_MACHINE:
            raise
        raise MachineProblem(f"{path} cannot be opened ({error.strerror})") from error
    file = open(number, "rb")  # noqa: SIM115 - the caller's to close
    if seen_of(os.fstat(number)) != seen:
        file.close()
        raise PageProblem("has changed while the run was under way; start the same command again")
    return file


class _Document:
    """A context manager around a file that is open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pdfium = _pdfium()

    def __enter__(self) -> _Document:
        try:
            self.pages: Any = self._pdfium.PdfDocument(self._file)
        except self._pdfium.PdfiumError as error:
            raise PageProblem(f"is no PDF file that can be opened ({error})") from None
        return self

    def __exit__(self, *_: object) -> None:
        self.pages.close()

    def image(self, page: int, dpi: int, page_format: str) -> bytes:
        """`page` counts from 1."""
        if page > len(self.pages):
            raise PageProblem(f"has {len(self.pages)} pages")
        try:
            one = self.pages[page - 1]
            width, height = (max(1, round(points * dpi / 72)) for points in one.get_size())
            if width * height > MAX_PIXELS:
                problem = f"has {width} x {height} pixels at {dpi} dpi and may have {MAX_PIXELS:,}"
                raise PageProblem(f"{problem}; lower --pdf-dpi")
            image = one.render(scale=dpi / 72).to_pil().convert("RGB")
        except self._pdfium.PdfiumError as error:
            raise PageProblem(f"has a page that cannot be rendered ({error})") from None
        target = io.BytesIO()
        if page_format == "jpeg":
            image.save(target, "JPEG", quality=JPEG_QUALITY)
        else:
            image.save(target, "PNG", compress_level=1)  # of the default level: two thirds of the time
        return target.getvalue()


def _pdfium() -> Any:
    try:
        importlib.import_module("PIL.Image")
        return importlib.import_module("pypdfium2")
    except ImportError as error:
        raise MissingExtra("pdf", f"reading PDF files ({INSTALL})") from error
