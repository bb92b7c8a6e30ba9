"""The input file of a run as numbered lines. Compressed files are decompressed while they are read."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from millstream.batch.files.compressed import Plain, open_plain
from millstream.batch.rows.line_splitter import MAX_LINE_BYTES, InputLine, LineSplitter
from millstream.errors import InvalidRequest

_PIECE_BYTES = 64 * 1024


class ChangedInput(InvalidRequest):
    """Another file stands at the path, or lines of it have moved."""

    def __init__(self, path: Path) -> None:
        super().__init__("IN", str(path), "has changed while the run was under way; start it again")


class InputFile:
    """A context manager; iterate it once. Raises InvalidRequest if compressed data is cut off or damaged."""

    def __init__(self, path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        """Raises InvalidRequest if there is no such file, or its encoding is not UTF-8; MissingExtra."""
        self.path = path
        self.total: int | None = None  # lines that are not blank, once they have been counted
        self._most = max_line_bytes
        self._splitter = LineSplitter(max_line_bytes)
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InvalidRequest("IN", str(path), "is no regular file; write its lines to one first")
            self._plain: Plain = open_plain(path)
        except OSError as error:
            raise InvalidRequest("IN", str(path), f"cannot be read: {error.strerror}") from error
        try:
            self._refuse_utf16()
        except BaseException:
            self._plain.close()
            raise

    @property
    def is_plain(self) -> bool:
        """True if it can be read at any place as fast as from its beginning."""
        return not self._plain.damage  # nothing is unpacked

    @property
    def version(self) -> tuple[int, ...]:
        """Another one, if the file was replaced or changed."""
        found = os.fstat(self._plain.raw.fileno())
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def __iter__(self) -> Iterator[InputLine]:
        return self._lines()

    def behind(self, place: int, number: int) -> Iterator[InputLine]:
        """The lines behind the one that begins at this byte."""
        self._plain.file.seek(place)
        self._splitter = LineSplitter(self._most, lines=number - 1, place=place)
        return islice(self._lines(), 1, None)

    def _lines(self) -> Iterator[InputLine]:
        while piece := self._read(self._plain.file.read1, _PIECE_BYTES):  # what there is before any damage
            yield from self._splitter.feed(piece)
        yield from self._splitter.end()

    def line_at(self, place: int, number: int) -> InputLine | None:
        """The line that begins at this byte, as it was read before; None: the file ends there now. Raises
        ChangedInput if no line begins there, or a blank one. Use it on a file that is not iterated.
        """
        self._plain.file.seek(max(0, place - 1))
        before = self._read(self._plain.file.read, 1) if place else b"\n"
        if before not in (b"", b"\n"):
            raise ChangedInput(self.path)
        data = self._read(self._plain.file.readline, self._most + len(codecs.BOM_UTF8) + 1)
        ended = data.endswith(b"\n") or len(data) > self._most
        data = data.removesuffix(b"\n")
        data = data.removeprefix(codecs.BOM_UTF8) if number == 1 else data
        if len(data) > self._most:
            return InputLine(number, None, self._most, place, ended)
        if data and not data.isspace():
            return InputLine(number, data, self._most, place, ended)
        if ended or data:
            raise ChangedInput(self.path)
        return None

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.close()

    def _refuse_utf16(self) -> None:
        if self._read(self._plain.file.read, 2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise InvalidRequest("IN", str(self.path), "is UTF-16; convert it to UTF-8 first")
        self._plain.file.seek(0)

    def _read(self, read: Callable[[int], bytes], limit: int) -> bytes:
        try:
            return read(limit)
        except self._plain.damage as error:
            lines = self._splitter.lines
            problem = f"its compressed data is cut off or damaged after line {lines:,} ({error})"
            raise InvalidRequest("IN", str(self.path), f"{problem}; make it again") from error
