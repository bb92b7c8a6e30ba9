"""The lines of a batch's input, as they come out of the store: all of them, or from their places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from millstream.batch.rows.line_splitter import MAX_LINE_BYTES, InputLine, LineSplitter

_PIECE_BYTES = 16 * 1024  # until other tasks of the gateway have their turn: each byte may be a line
_READ_TOGETHER = 64  # lines: a request to the cloud takes some 30 ms
_MOST_READ = 8 * 1024**2  # bytes of these
_LONGEST_BYTES = MAX_LINE_BYTES + 4  # with its end, and a mark before the first one; blank ones may follow
Span = tuple[int, int, int]  # a line's number, the byte that it begins at, and one behind its end
ReadPieces = Callable[[Sequence[int], Sequence[int]], Awaitable[Sequence[bytes]]]  # by begins and ends


async def input_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[InputLine]:
    splitter = LineSplitter()
    async for chunk in chunks:
        for begin in range(0, len(chunk), _PIECE_BYTES):
            await asyncio.sleep(0)
            for line in splitter.feed(chunk[begin : begin + _PIECE_BYTES]):
                yield line
    for line in splitter.end():
        yield line


async def lines_at(spans: Iterable[Span], read: ReadPieces) -> AsyncIterator[InputLine]:
    """The lines of these spans, in their order; some are read together. Raises what `read` raises."""
    some: list[Span] = []
    held = 0
    for span in spans:
        size = span[2] - span[1]
        if len(some) == _READ_TOGETHER or held + size > _MOST_READ:
            for line in await _read(some, read):
                yield line
            some, held = [], 0
        some.append(span)
        held += size
    for line in await _read(some, read):
        yield line


async def _read(spans: Sequence[Span], read: ReadPieces) -> list[InputLine]:
    if not spans:
        return []
    starts = [place for _, place, _ in spans]
    ends = [min(end, place + _LONGEST_BYTES) for _, place, end in spans]
    found: list[InputLine] = []
    for (number, place, _), data in zip(spans, await read(starts, ends), strict=True):
        splitter = LineSplitter(lines=number - 1, place=place)
        end = data.find(b"\n") + 1  # a million blank lines may follow
        found += [*splitter.feed(data[:end] if end else data), *splitter.end()]
    return found
