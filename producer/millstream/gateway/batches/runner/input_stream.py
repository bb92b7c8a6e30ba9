"""The lines of a batch's input, as they come out of the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from millstream.batch.rows.line_splitter import InputLine, LineSplitter

_PIECE_BYTES = 16 * 1024  # until other tasks of the gateway have their turn: each byte may be a line


async def input_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[InputLine]:
    splitter = LineSplitter()
    async for chunk in chunks:
        for begin in range(0, len(chunk), _PIECE_BYTES):
            await asyncio.sleep(0)
            for line in splitter.feed(chunk[begin : begin + _PIECE_BYTES]):
                yield line
    for line in splitter.end():
        yield line
