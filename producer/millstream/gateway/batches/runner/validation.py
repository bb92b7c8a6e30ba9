"""Reads the whole input before anything of it is submitted. Memory is bounded: 16 bytes a line."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from array import array
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.batch.files.input_lines import InputLine
from millstream.batch.rows.faults import LineFault, duplicate
from millstream.gateway.batches.runner.line_reader import LineReader

MOST_ERRORS = 100
_AT_ONCE = 8  # lines, until other tasks of the gateway have their turn


class SeenIds:
    """A mutable set of texts: 64 bits of each one's keyed digest, in a table with open addressing. Of a
    million texts, two that differ are taken for the same with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._count = 0
        self._table = array("Q", bytes(8 * 1024))

    def add(self, text: str) -> bool:
        """Adds a text. True if it is new."""
        digest = hashlib.blake2b(text.encode(), digest_size=8, key=self._key).digest()
        value = int.from_bytes(digest) or 1  # 0: an empty place
        place = self._place(value)
        if self._table[place]:
            return False
        self._table[place] = value
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    def _place(self, value: int) -> int:
        """Returns the place where the value is, or belongs."""
        table, mask = self._table, len(self._table) - 1
        place = value & mask
        while table[place] and table[place] != value:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        before = self._table
        self._table = array("Q", bytes(16 * len(before)))
        for value in before:
            if value:
                self._table[self._place(value)] = value


@dataclass(slots=True)
class Verdict:
    """`errors`: as the batch object has them. `total`: lines that are not blank."""

    total: int = 0
    errors: list[Mapping[str, Any]] = field(default_factory=list)

    def refuse(self, line: int | None, fault: LineFault) -> None:
        error = {"code": fault.code, "line": line, "message": fault.message, "param": fault.field}
        self.errors.append(error)


async def validate(lines: AsyncIterator[InputLine], reader: LineReader, most_lines: int) -> Verdict:
    """Raises Unavailable."""
    verdict, seen = Verdict(), SeenIds()
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
        except LineFault as fault:
            verdict.refuse(line.number, fault)
            if len(verdict.errors) == MOST_ERRORS:
                return verdict
    if not verdict.total:
        verdict.refuse(None, LineFault("empty_file", "the input has no lines; give each request one"))
    return verdict
