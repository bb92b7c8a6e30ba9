"""Cuts an input, read in pieces, into numbered lines: neither a huge line nor a huge file is held whole.

Blank lines are skipped but counted, so that line numbers are those of an editor.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass

MAX_LINE_BYTES = 24 * 1024 * 1024  # the longest request, whose images are base64 here


@dataclass(frozen=True, slots=True)
class InputLine:
    number: int  # from 1
    data: bytes | None  # without its end; None: longer than the limit
    limit: int = MAX_LINE_BYTES
    place: int = 0  # the byte of the (decompressed) input that it begins at
    ended: bool = True  # by a line break: False of a last line that may be torn


class LineSplitter:
    """Takes the pieces in their order. `lines` counts those that have ended, blank ones too."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES, *, lines: int = 0, place: int = 0) -> None:
        """`lines` and `place`: what stands before the first piece."""
        self.lines = lines
        self._most = max_line_bytes
        self._held = bytearray()  # the beginning of the next line
        self._place = self._fed = place  # the byte that this one begins at; bytes that were fed

    def feed(self, piece: bytes) -> Iterator[InputLine]:
        """Yields the lines that end in the piece."""
        place, self._fed = self._fed, self._fed + len(piece)
        if not self._held and piece.isspace() and len(piece) <= self._most:  # all its lines are blank
            self.lines += piece.count(b"\n")
            self._held += piece.rpartition(b"\n")[2]
            self._place = self._fed - len(self._held)
            return
        *ends, rest = piece.split(b"\n")
        for end in ends:
            data = bytes(self._held) + end if self._held else end
            self._held.clear()
            yield from self._line(data)
            place += len(end) + 1
            self._place = place
        if len(self._held) <= self._most + len(BOM_UTF8):  # beyond that it only matters that it is too long
            self._held += rest

    def end(self) -> Iterator[InputLine]:
        """Yields the last line, if nothing ends it."""
        if self._held:
            yield from self._line(bytes(self._held), ended=False)

    def _line(self, data: bytes, *, ended: bool = True) -> Iterator[InputLine]:
        self.lines += 1
        data = data.removeprefix(BOM_UTF8) if self.lines == 1 else data
        if len(data) > self._most:
            yield InputLine(self.lines, None, self._most, self._place, ended)
        elif data and not data.isspace():
            yield InputLine(self.lines, data, self._most, self._place, ended)
