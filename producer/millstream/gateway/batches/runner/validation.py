"""Reads the whole input before anything of it is submitted, and finds the order in which its lines are sent.
Memory is bounded: about 100 bytes a line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream.batch.order.line_order import LineOrder, OrderedPass
from millstream.batch.rows.faults import LineFault, duplicate
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.rows.seen_ids import SeenIds
from millstream.gateway.batches.runner.line_reader import LineReader

MOST_ERRORS = 100
_AT_ONCE = 8  # lines, until other tasks of the gateway have their turn


@dataclass(slots=True)
class Verdict:
    """`errors`: as the batch object has them. `total`: lines that are not blank."""

    total: int = 0
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    order: LineOrder | None = None  # of lines without errors, if the reader finds it

    def refuse(self, line: int | None, fault: LineFault) -> None:
        error = {"code": fault.code, "line": line, "message": fault.message, "param": fault.field}
        self.errors.append(error)


async def validate(lines: AsyncIterator[InputLine], reader: LineReader, most_lines: int) -> Verdict:
    """Raises Unavailable."""
    verdict, seen = Verdict(), SeenIds()
    ordered = OrderedPass() if reader.finds_order else None
    async for line in lines:
        verdict.total += 1
        if verdict.total > most_lines:
            problem = f"more than {most_lines} lines; divide the input into several batches"
            verdict.refuse(line.number, LineFault("too_many_lines", problem))
            return verdict
        if verdict.total % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            row = await reader.read(line)
            if not seen.add(row.custom_id):
                raise duplicate(row.custom_id)
            if ordered is not None:
                _take(ordered, line, row.beginnings)
        except LineFault as fault:
            verdict.refuse(line.number, fault)
            if len(verdict.errors) == MOST_ERRORS:
                return verdict
    if not verdict.total:
        verdict.refuse(None, LineFault("empty_file", "the input has no lines; give each request one"))
    verdict.order = None if ordered is None else await _ended(ordered)
    return verdict


async def find_order(lines: AsyncIterator[InputLine], reader: LineReader) -> LineOrder:
    """The order of an input that was validated before."""
    ordered, count = OrderedPass(), 0
    async for line in lines:
        if (count := count + 1) % _AT_ONCE == 0:
            await asyncio.sleep(0)
        _take(ordered, line, await reader.beginnings(line))
    return await _ended(ordered)


def _take(ordered: OrderedPass, line: InputLine, beginnings: Sequence[int]) -> None:
    ordered.take(line.number, line.place, len(line.data or b""), beginnings)


async def _ended(ordered: OrderedPass) -> LineOrder:
    for _ in ordered.steps():
        await asyncio.sleep(0)
    return ordered.order
