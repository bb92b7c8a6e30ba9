"""The lines of a batch's input, as they come out of the store: all of them, or from their places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import chain

from millstream.batch.rows.line_splitter import MAX_LINE_BYTES, InputLine, LineSplitter

_PIECE_BYTES = 16 * 1024  # until other tasks of the gateway have their turn: each byte may be a line
_READS_AT_ONCE = 16  # of lines: one from the cloud takes some 30 ms
_MOST_READ = 8 * 1024**2  # bytes of these
Span = tuple[int, int, int]  # a line's number, the byte that it begins at, and one behind its end
ReadPiece = Callable[[int, int], AsyncIterator[bytes]]


async def input_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[InputLine]:
    splitter = LineSplitter()
    async for chunk in chunks:
        for begin in range(0, len(chunk), _PIECE_BYTES):
            await asyncio.sleep(0)
            for line in splitter.feed(chunk[begin : begin + _PIECE_BYTES]):
                yield line
    for line in splitter.end():
        yield line


async def lines_at(spans: Iterable[Span], read: ReadPiece) -> AsyncIterator[InputLine]:
    """The lines of these spans, in their order, some of which are read at once. Raises what `read` raises."""
    some: list[Span] = []
    held = 0
    for span in spans:
        size = span[2] - span[1]
        if len(some) == _READS_AT_ONCE or held + size > _MOST_READ:
            for line in await _read(some, read):
                yield line
            some, held = [], 0
        some.append(span)
        held += size
    for line in await _read(some, read):
        yield line


async def _read(spans: Sequence[Span], read: ReadPiece) -> list[InputLine]:
    found = await asyncio.gather(*(_line_at(span, read) for span in spans))
    return [line for line in found if line is not None]


async def _line_at(span: Span, read: ReadPiece) -> InputLine | None:
    number, place, end = span
    most = place + MAX_LINE_BYTES + 4  # with its end, and a mark before the first one; blank ones may follow
    data = b"".join([chunk async for chunk in read(place, min(end, most))])
    splitter = LineSplitter(lines=number - 1, place=place)
    return next(chain(splitter.feed(data), splitter.end()), None)
