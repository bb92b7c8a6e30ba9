"""Finds the files that the images of lines name below one folder. They are looked at here, and read later.

Until then a request has a stand-in for each: the beginning of a PNG, and the file's identity behind it.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from millstream.batch.media.pdf_pages import INSTALL, MAX_DPI, can_render, is_pdf, seen_of
from millstream.errors import InvalidRequest
from millstream.openai.messages.image_parts import NO_PATHS, image_paths
from millstream.wire.messages.codec import MAX_MESSAGE_BYTES
from millstream.wire.messages.images import Image

DEFAULT_DPI = 144
PAGE = re.compile(r"^(?P<name>.+)#page=(?P<page>[0-9]{1,7})$", re.DOTALL)
_PNG = b"\x89PNG\r\n\x1a\n"


class PageFormat(StrEnum):
    """The format of pages of PDF files. JPEG is smaller and loses detail, so that answers change."""

    PNG = "png"
    JPEG = "jpeg"


@dataclass(frozen=True, slots=True)
class MediaPage:
    """An image file, or a page of a PDF file. `where`: the field that names it, as `name`; `seen`: the file's
    device, inode, size and time of change, which a reader compares; `mark` is its identity in digests.
    """

    where: str
    name: str
    path: Path
    page: int | None
    seen: tuple[int, ...]
    mark: bytes
    most_bytes: int  # that its image may have


@dataclass(frozen=True, slots=True)
class MediaFolder:
    """`root` is resolved: see `of`."""

    root: Path
    dpi: int = DEFAULT_DPI
    page_format: PageFormat = PageFormat.PNG

    @classmethod
    def of(
        cls, folder: Path, dpi: int = DEFAULT_DPI, page_format: PageFormat = PageFormat.PNG
    ) -> MediaFolder:
        """Raises InvalidRequest if there is no such folder."""
        if not folder.is_dir():
            raise InvalidRequest("media", str(folder), "is no folder; give the one that the files are below")
        if type(dpi) is not int or not 1 <= dpi <= MAX_DPI:
            raise InvalidRequest("pdf_dpi", dpi, f"must be from 1 to {MAX_DPI}")
        return cls(folder.resolve(), dpi, page_format)

    def page_of(self, where: str, given: str) -> MediaPage:
        """The file that a part's text names. Raises InvalidRequest unless it is there, below the folder."""
        named = PAGE.match(given)
        name, page = (named["name"], int(named["page"])) if named else (given, None)
        path, found = self._look(where, given, name)
        if is_pdf(name) and not page:
            raise InvalidRequest(where, given, f"must name a page, counted from 1: {name}#page=1")
        if page is not None and not is_pdf(name):
            raise InvalidRequest(where, given, "names a page; only PDF files have pages")
        if page is not None and not can_render():
            raise InvalidRequest(where, given, f"is of a PDF file, which needs {INSTALL}")
        if page is None and found.st_size > MAX_MESSAGE_BYTES:
            problem = f"has {found.st_size:,} bytes; a whole message may have {MAX_MESSAGE_BYTES:,}"
            raise InvalidRequest(where, given, problem)
        # The identity is path, size and time of change, not the SHA-256 of the pixels or of the file: a batch
        # of 50,000 scans would be read, or rendered, twice, before its first job and at each resume. A copy
        # that does not keep its times counts as changed: the run says so, and never mixes answers unasked.
        marks = [path.relative_to(self.root).as_posix(), found.st_size, found.st_mtime_ns]
        if page is not None:
            marks += [page, self.dpi, self.page_format]
        return MediaPage(
            where,
            given,
            path,
            page,
            seen_of(found),
            json.dumps(marks).encode(),
            # of a page nobody knows before it is rendered; 0 would say that there is nothing to read
            max(1, found.st_size) if page is None else MAX_MESSAGE_BYTES,
        )

    def marks_of(self, body: Mapping[str, Any]) -> str:
        """The identities of all files that a body names, for its digest; empty: it names none."""
        return "".join(self._mark(path) for path in image_paths(body.get("messages")))

    def sees(self, body: Mapping[str, Any]) -> bool:
        """True if all files that a body names can be looked at."""
        return "null" not in map(self._mark, image_paths(body.get("messages")))

    def _mark(self, given: str) -> str:
        try:
            return self.page_of("", given).mark.decode()
        except InvalidRequest:
            return "null"

    def _look(self, where: str, given: str, name: str) -> tuple[Path, Any]:
        if ".." in Path(name).parts:
            raise InvalidRequest(where, given, NO_PATHS)
        try:
            path = (self.root / name).resolve()
            if not path.is_relative_to(self.root):
                raise InvalidRequest(where, given, NO_PATHS)
            found = path.stat()
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle
            problem = f"cannot be read below {self.root} ({getattr(error, 'strerror', None) or error})"
            raise InvalidRequest(where, given, problem) from None
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequest(where, given, "is no regular file; give an image file")
        return path, found


class StandIns:
    """Mutable; one per line. Takes the places of files in a request until they are read."""

    def __init__(self, folder: MediaFolder) -> None:
        self._folder = folder
        self._pages: dict[bytes, MediaPage] = {}

    def take(self, where: str, given: str) -> bytes:
        """The stand-in of a file. Raises InvalidRequest."""
        page = self._folder.page_of(where, given)
        self._pages.setdefault(data := _PNG + page.mark, page)
        return data

    def places(self, images: Sequence[Image]) -> dict[int, MediaPage]:
        """The files by their places among the images of the request."""
        found = ((place, self._pages.get(image.data)) for place, image in enumerate(images))
        return {place: page for place, page in found if page is not None}
