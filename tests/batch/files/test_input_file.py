"""Reading the input: numbering, encodings, and no more memory than a line."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.batch.files.input_file import InputFile
from millstream.batch.rows.line_splitter import InputLine
from millstream.errors import InvalidRequest


def lines_of(path: Path, data: bytes, max_line_bytes: int = 100) -> list[tuple[int, bytes | None]]:
    path.write_bytes(data)
    with InputFile(path, max_line_bytes) as file:
        return [(line.number, line.data) for line in file]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_lines_over_the_limit_are_told_without_their_content(path: Path) -> None:
    data = b"a\n" + b"x" * 101 + b"\n" + b"y" * 5_000_000 + b"\nb"
    assert lines_of(path, data) == [(1, b"a"), (2, None), (3, None), (4, b"b")]


def test_a_compressed_file_is_read_as_what_it_holds(path: Path) -> None:
    data = gzip.compress(b"\xef\xbb\xbfa\n") + gzip.compress(b"\nb")  # two members, as `cat` makes them
    assert lines_of(path, data) == [(1, b"a"), (3, b"b")]
    path.write_bytes(data[:-9])
    cut = r"IN: its compressed data is cut off or damaged after line 2 \("
    with InputFile(path) as source, pytest.raises(InvalidRequest, match=cut):
        list(source)


def test_a_compressed_line_without_an_end_takes_little_memory(path: Path) -> None:
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b"x" * 1_000_000)
    tracemalloc.start()
    try:
        with InputFile(path, 100_000) as source:
            assert [line.data for line in source] == [None]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("packing", [bytes, gzip.compress])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_another_encoding_is_refused_at_once(
    path: Path, encoding: str, packing: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(packing("\ufeff{}".encode(encoding)))
    with pytest.raises(InvalidRequest, match="is UTF-16; convert it to UTF-8"):
        InputFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be read: No such file.*nowhere"):
        InputFile(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="Is a directory"):
        InputFile(tmp_path)
    with pytest.raises(InvalidRequest, match="IN: cannot be read: File name too long"):
        InputFile(tmp_path / ("x" * 5000))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest, match="is no regular file; write its lines to one first"):
        InputFile(tmp_path / "pipe")


def test_a_large_file_takes_the_memory_of_its_longest_line(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(60):
            file.write(b"x" * 1_000_000 + b"\n")
    with InputFile(path, 2_000_000) as source:
        tracemalloc.start()
        try:
            assert sum(1 for _ in source) == 60
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8_000_000


def test_a_line_at_its_place_is_as_it_was_iterated(path: Path) -> None:
    """Also one of too many blanks, which is no blank line."""
    path.write_bytes(b"\xef\xbb\xbf" + b"a" * 100 + b"\n" + b" " * 101 + b"\n\nb\n" + b"c" * 101 + b"\n")
    with InputFile(path, 100) as source:
        lines = list(source)
    with InputFile(path, 100) as source:
        assert [source.line_at(line.place, line.number) for line in lines] == lines
    assert lines[1] == InputLine(2, None, 100, 104)


def test_a_place_where_no_line_begins_any_more_is_told(path: Path) -> None:
    """A blank line is none that was read; the end of the file is no change of what was before."""
    path.write_bytes(b"a\nb\n\n  \n")
    with InputFile(path) as source:
        assert source.line_at(0, 1) == InputLine(1, b"a")
        assert source.line_at(2, 2) == InputLine(2, b"b", place=2)
        assert source.line_at(8, 5) is None
        assert source.line_at(40, 9) is None
        for place in (1, 3, 4, 5, 6):
            with pytest.raises(InvalidRequest, match="IN: has changed while the run was under way; start it"):
                source.line_at(place, 2)
