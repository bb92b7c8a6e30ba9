"""Reads the lines of an input in the order in which they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

from millstream.batch.files.input_file import InputFile
from millstream.batch.order.line_order import LineOrder
from millstream.batch.rows.line_splitter import InputLine


async def ordered_lines(source: InputFile, order: LineOrder | None) -> AsyncIterator[InputLine]:
    """All lines, also those that have come behind the last one since the order was found. In the file's own
    order if there is no other, or no line is moved. Raises what `InputFile` raises.
    """
    lines = iter(source)
    if order is not None and order.moved and source.is_plain:
        for number, place, _ in order.lines():
            if (line := source.line_at(place, number)) is not None:
                yield line
        lines = source.behind(order.places[-1], order.numbers[-1])
    elif order is not None and order.moved:
        begin = 0
        for count in order.stretches:
            held: list[InputLine | None] = await asyncio.to_thread(list, islice(lines, count))
            for at in order.order[begin : begin + count]:
                if at - begin < len(held):  # it may have been cut off since
                    one, held[at - begin] = held[at - begin], None  # the next stretch needs its memory
                    if one is not None:
                        yield one
            begin += count
    for line in lines:
        yield line
