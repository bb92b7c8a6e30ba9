"""Lines of a file or of a stream, in the order in which they are sent."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.batch.files.input_file import InputFile
from millstream.batch.order import line_order
from millstream.batch.order.line_order import LineOrder, OrderedPass
from millstream.batch.order.ordered_input import ordered_lines
from millstream.batch.rows.line_splitter import InputLine
from millstream.errors import InvalidRequest

DATA = b"\xef\xbb\xbfa1\r\n\n \nb1\na2\n" + b"c" * 300 + b"\nb2\na3"
IN_ORDER = [(1, b"a1\r"), (5, b"a2"), (8, b"a3"), (4, b"b1"), (7, b"b2"), (6, None)]
Packing = Callable[[bytes], bytes]
both = pytest.mark.parametrize("packing", [bytes, gzip.compress])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def opened(path: Path) -> InputFile:
    return InputFile(path, max_line_bytes=200)


def order_of(path: Path) -> LineOrder:
    """Lines with the same first letter begin alike."""
    with opened(path) as source:
        ordered = OrderedPass(whole=source.is_plain)
        for line in source:
            ordered.take(line.number, line.place, len(line.data or b""), list((line.data or b"")[:1]))
        return ordered.end()


async def read(path: Path, order: LineOrder | None) -> list[InputLine]:
    with opened(path) as source:
        return [line async for line in ordered_lines(source, order)]


def told(lines: list[InputLine]) -> list[tuple[int, bytes | None]]:
    return [(line.number, line.data) for line in lines]


@both
async def test_lines_are_those_of_the_file_whatever_their_order(path: Path, packing: Packing) -> None:
    write(path, packing(DATA))
    in_file = await read(path, None)
    sent = await read(path, order_of(path))
    assert told(sent) == IN_ORDER
    assert sorted(sent, key=lambda line: line.number) == in_file


async def test_a_stream_has_one_stretch_after_the_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_order, "STRETCH_BYTES", 3 * 260)
    write(path, gzip.compress(DATA))
    order = order_of(path)
    assert order.stretches == [3, 3]
    assert [number for number, _ in told(await read(path, order))] == [1, 5, 4, 6, 7, 8]


@both
async def test_lines_that_were_added_meanwhile_come_last(path: Path, packing: Packing) -> None:
    write(path, packing(DATA))
    order = order_of(path)
    write(path, packing(DATA + b"\n\nb3\nd"))
    assert told(await read(path, order)) == [*IN_ORDER, (10, b"b3"), (11, b"d")]


@both
async def test_a_file_that_was_cut_off_meanwhile_has_fewer_lines(path: Path, packing: Packing) -> None:
    write(path, packing(DATA))
    order = order_of(path)
    write(path, packing(DATA[:20]))
    assert told(await read(path, order))[:3] == [(1, b"a1\r"), (5, b"a2"), (4, b"b1")]


async def test_a_file_that_was_changed_meanwhile_is_told(path: Path) -> None:
    """Places may point at newlines now: no line is lost without a word."""
    write(path, DATA)
    order = order_of(path)
    write(path, DATA.replace(b"a2", b"\n\n"))
    with pytest.raises(InvalidRequest, match="has changed while the run was under way; start it again"):
        await read(path, order)


async def test_one_stretch_is_held_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no line of it that was sent."""
    monkeypatch.setattr(line_order, "STRETCH_BYTES", 4 * 500_300)
    write(path, gzip.compress((b"a" * 500_000 + b"\n" + b"b" * 500_000 + b"\n") * 4, 1))
    with InputFile(path) as source:
        ordered = OrderedPass(whole=False)
        for line in source:
            ordered.take(line.number, line.place, len(line.data or b""), list((line.data or b"")[:1]))
    order = ordered.end()
    assert order.stretches == [4, 4]
    tracemalloc.start()
    try:
        with InputFile(path) as source:
            held = [tracemalloc.get_traced_memory()[0] async for _ in ordered_lines(source, order)]
    finally:
        tracemalloc.stop()
    assert [size // 500_000 for size in held] == [4, 3, 2, 1, 4, 3, 2, 1]


@pytest.mark.parametrize("letters", ["abc", "aabb", "abbb"])
async def test_nothing_is_sought_where_no_line_is_moved(
    path: Path, letters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, "\n".join(letters).encode())
    order = order_of(path)
    monkeypatch.delattr(InputFile, "line_at")
    monkeypatch.delattr(InputFile, "behind")
    assert [line.data for line in await read(path, order)] == [letter.encode() for letter in letters]
