"""The input file as numbered lines, however large it is: no line and no number of lines is ever held whole.

Blank lines are skipped but counted, so that line numbers are those of an editor.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from millstream.errors import InvalidRequest

MAX_LINE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # from 1
    data: bytes | None  # None: longer than the limit
    end: int  # file offset behind it: how far the reading is


class InputFile:
    """A context manager; iterate it once. `size` and `position` are bytes; `done`: all lines were read."""

    def __init__(self, path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        """Raises InvalidRequest where there is no such file, or its encoding is not UTF-8."""
        self.max_line_bytes = max_line_bytes
        try:
            if path.exists() and not path.is_file() and not path.is_dir():
                raise InvalidRequest("IN", str(path), "is no regular file; write its lines to one first")
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise InvalidRequest("IN", str(path), f"cannot be read: {error.strerror}") from error
        self.size = path.stat().st_size
        self.position = 0
        self.lines = 0
        self.done = False
        self.total: int | None = None  # lines that are not blank, where somebody has counted them
        head = self._file.read(len(codecs.BOM_UTF8))
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            self._file.close()
            raise InvalidRequest("IN", str(path), "is UTF-16; convert it to UTF-8 first")
        self._file.seek(len(head) if head == codecs.BOM_UTF8 else 0)

    def __iter__(self) -> Iterator[Line]:
        while data := self._file.readline(self.max_line_bytes + 1):
            self.lines += 1
            too_long = len(data) > self.max_line_bytes
            while too_long and not data.endswith(b"\n") and data:
                data = self._file.readline(_PIECE_BYTES)  # to its end, in pieces
            self.position = self._file.tell()
            if too_long or data.strip():
                yield Line(self.lines, None if too_long else data, self.position)
        self.done = True

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
