"""The input file as numbered lines, read in pieces: neither a huge line nor a huge file is held whole.

Blank lines are skipped but counted, so that line numbers are those of an editor. Compressed files are
decompressed while they are read.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millstream.batch.files.compressed import Plain, open_plain
from millstream.errors import InvalidRequest

MAX_LINE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class InputLine:
    number: int  # from 1
    data: bytes | None  # None: longer than the limit


class InputFile:
    """A context manager; iterate it once. Raises InvalidRequest if compressed data is cut off or damaged."""

    def __init__(self, path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        """Raises InvalidRequest if there is no such file, or its encoding is not UTF-8; MissingExtra."""
        self.max_line_bytes = max_line_bytes
        self.path = path
        self.lines = 0
        self.total: int | None = None  # lines that are not blank, once they have been counted
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InvalidRequest("IN", str(path), "is no regular file; write its lines to one first")
            self._plain: Plain = open_plain(path)
        except OSError as error:
            raise InvalidRequest("IN", str(path), f"cannot be read: {error.strerror}") from error
        try:
            self._skip_mark()
        except BaseException:
            self._plain.close()
            raise

    def __iter__(self) -> Iterator[InputLine]:
        while data := self._read(self.max_line_bytes + 1):
            too_long = len(data) > self.max_line_bytes
            while too_long and not data.endswith(b"\n") and data:
                data = self._read(_PIECE_BYTES)  # to its end, in pieces
            self.lines += 1
            if too_long or data.strip():
                yield InputLine(self.lines, None if too_long else data)

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._plain.close()

    def _skip_mark(self) -> None:
        head = self._read(len(codecs.BOM_UTF8))
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidRequest("IN", str(self.path), "is UTF-16; convert it to UTF-8 first")
        self._plain.file.seek(len(head) if head == codecs.BOM_UTF8 else 0)

    def _read(self, limit: int) -> bytes:
        try:
            return self._plain.file.readline(limit)
        except self._plain.damage as error:
            problem = f"its compressed data is cut off or damaged after line {self.lines:,} ({error})"
            raise InvalidRequest("IN", str(self.path), f"{problem}; make it again") from error
