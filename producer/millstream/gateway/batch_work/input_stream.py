"""The lines of a batch's input, as they come out of the store: neither a huge line nor the file is held
whole.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator

from millstream.batch.files.input_lines import MAX_LINE_BYTES, InputLine


async def input_lines(
    chunks: AsyncIterator[bytes], most_bytes: int = MAX_LINE_BYTES
) -> AsyncIterator[InputLine]:
    """Blank ones are skipped but counted. A line above `most_bytes` has no data."""
    number, held, too_long = 0, bytearray(), False
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            number += 1
            data = bytes(held) + piece if held else piece
            if number == 1:
                data = data.removeprefix(codecs.BOM_UTF8)
            if too_long or len(data) > most_bytes:
                yield InputLine(number, None)
            elif data.strip():
                yield InputLine(number, data)
            held, too_long = bytearray(), False
        if len(held) + len(rest) > most_bytes:
            held, too_long = bytearray(), True
        elif not too_long:
            held += rest
    if too_long or held.strip():
        data = bytes(held) if number else bytes(held).removeprefix(codecs.BOM_UTF8)
        yield InputLine(number + 1, None if too_long else data)
