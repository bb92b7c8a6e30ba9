"""Sets of a batch's lines, and its records."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.batches.records.line_set import LineSet, ranges_of

RIGHT = {
    "status": "validating", "endpoint": "e", "input_file_id": "f", "completion_window": "1h",
    "created_s": "1", "expires_s": "2",
}  # fmt: skip


@given(st.sets(st.integers(1, 300)))
def test_a_set_of_lines_is_its_ranges(numbers: set[int]) -> None:
    text, found = ranges_of(numbers), LineSet()
    if numbers:
        found.add_ranges(text, 300)
    assert {number for number in range(1, 400) if number in found} == numbers
    assert len(found) == len(numbers)
    for number in sorted(numbers)[::2]:
        found.discard(number)
    assert {number for number in range(1, 400) if number in found} == set(sorted(numbers)[1::2])


@pytest.mark.parametrize("text", ["", "0", "2-1", "1-400000000", "x"])
def test_damaged_ranges_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"lines|invalid literal"):
        LineSet().add_ranges(text, 300)


def test_ranges_are_short() -> None:
    assert ranges_of([7, 3, 1, 2]) == "1-3,7"


def test_damaged_records_are_told() -> None:
    for text in ("", "output x 1", "other x 1 2", "output x y 2"):
        with pytest.raises(ProtocolError):
            BatchPart.of(text)
    assert BatchPart.of("error x 1 2") == BatchPart(RowKind.ERROR, "x", 1, 2)
    assert len(BatchRecord.of("t", "batch_1", RIGHT).to_api()) == 22
    for name, value in (
        ("status", "lost"),
        ("created_s", "x"),
        ("errors", "{"),
        ("metadata", "{"),
        ("models", "[1]"),
        ("queues", "{}"),
        ("errors", "3"),
    ):
        with pytest.raises(ProtocolError):
            BatchRecord.of("t", "batch_1", RIGHT | {name: value})


async def test_the_lines_of_many_parts_keep_nobody_waiting() -> None:
    """A part of a grouped batch has as many ranges as rows."""

    async def ranges(*_: Any) -> list[bytes]:
        return [b"1,3,5"] * 100

    redis: Any = SimpleNamespace(reach=nullcontext, client=SimpleNamespace(lrange=ranges))
    parts = [BatchPart(RowKind.OUTPUT, str(place), 3, 9) for place in range(100)]
    batch = BatchRecord.of("t", "batch_1", RIGHT)
    reading = asyncio.ensure_future(BatchCatalogue(redis).written_lines(batch, parts, [], 5))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > len(parts)
    assert len(reading.result().lines) == 3
