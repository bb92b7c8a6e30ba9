"""Reading the input: numbering, encodings, and no more memory than a line."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from millstream.batch.lines import InputFile
from millstream.errors import InvalidRequest


def lines_of(path: Path, data: bytes, max_line_bytes: int = 100) -> list[tuple[int, bytes | None]]:
    path.write_bytes(data)
    with InputFile(path, max_line_bytes) as file:
        return [(line.number, line.data) for line in file]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


def test_blank_lines_count_and_are_skipped(path: Path) -> None:
    assert lines_of(path, b"a\n\n  \t\r\nb\n") == [(1, b"a\n"), (4, b"b\n")]


def test_a_byte_order_mark_is_no_part_of_the_first_line(path: Path) -> None:
    assert lines_of(path, b"\xef\xbb\xbfa\r\nb") == [(1, b"a\r\n"), (2, b"b")]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_lines(path: Path, data: bytes) -> None:
    assert lines_of(path, data) == []


def test_lines_over_the_limit_are_told_without_their_content(path: Path) -> None:
    long = b"x" * 101
    data = b"a\n" + long + b"\n" + b"y" * 5_000_000 + b"\nb\n" + long
    assert lines_of(path, data) == [(1, b"a\n"), (2, None), (3, None), (4, b"b\n"), (5, None)]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_another_encoding_is_refused_at_once(path: Path, encoding: str) -> None:
    path.write_bytes("\ufeff{}".encode(encoding))
    with pytest.raises(InvalidRequest, match="is UTF-16; convert it to UTF-8"):
        InputFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be read: No such file.*nowhere"):
        InputFile(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match="Is a directory"):
        InputFile(tmp_path)
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


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="IN: cannot be read: File name too long"):
        InputFile(tmp_path / ("x" * 5000))
