"""The lines of a batch's input, as they come out of the store: neither a huge line nor the file is held
whole.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncIterator

from millstream.batch.files.input_lines import MAX_LINE_BYTES, InputLine

_PIECE_BYTES = 16 * 1024  # until other tasks of the gateway have their turn: each byte may be a line


async def input_lines(
    chunks: AsyncIterator[bytes], most_bytes: int = MAX_LINE_BYTES
) -> AsyncIterator[InputLine]:
    """Blank ones are skipped but counted. A line above `most_bytes` has no data."""
    number, held = 1, bytearray()
    async for chunk in chunks:
        for begin in range(0, len(chunk), _PIECE_BYTES):
            await asyncio.sleep(0)
            piece = chunk[begin : begin + _PIECE_BYTES]
            if not held and piece.isspace() and len(piece) <= most_bytes:  # all its lines are blank
                number += piece.count(b"\n")
                held += piece.rpartition(b"\n")[2]
                continue
            *ends, rest = piece.split(b"\n")
            for end in ends:
                if (line := _line(number, bytes(held) + end if held else end, most_bytes)) is not None:
                    yield line
                number += 1
                held.clear()
            if len(held) <= most_bytes + len(BOM_UTF8):  # beyond that it only matters that it is too long
                held += rest
    if (line := _line(number, bytes(held), most_bytes)) is not None:
        yield line


def _line(number: int, data: bytes, most_bytes: int) -> InputLine | None:
    """None: it is blank."""
    data = data.removeprefix(BOM_UTF8) if number == 1 else data
    if len(data) > most_bytes:
        return InputLine(number, None)
    return InputLine(number, data) if data.strip() else None
