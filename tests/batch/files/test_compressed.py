"""Compressed data that come in pieces."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.packed import PACKERS, ZSTD

from millstream.batch.files.compressed import DamagedData, Decompressor, FileCompression, compression_in

packings = pytest.mark.parametrize("packing", FileCompression)


def decompressed(packing: FileCompression, pieces: Sequence[bytes]) -> bytes:
    made = Decompressor(packing)
    found = b"".join(part for piece in pieces for part in made.feed(piece))
    made.end()
    return found


@packings
@given(
    members=st.lists(st.binary(max_size=300) | st.just(bytes(200_000)), min_size=1, max_size=4),
    size=st.integers(1, 100),
)
def test_pieces_of_any_size_are_the_whole(packing: FileCompression, members: list[bytes], size: int) -> None:
    data = b"".join(map(PACKERS[packing], members))
    assert compression_in(data) is packing
    pieces = [data[begin : begin + size] for begin in range(0, len(data), size)]
    assert decompressed(packing, pieces) == decompressed(packing, [data]) == b"".join(members)


def test_padding_behind_a_member_of_gzip_is_none_of_it() -> None:
    data = gzip.compress(b"a") + bytes(100_000) + gzip.compress(b"b") + b"\0"
    assert decompressed(FileCompression.GZIP, [data]) == b"ab" == gzip.decompress(data)


@packings
def test_damaged_and_cut_data_are_told(packing: FileCompression) -> None:
    data = PACKERS[packing](b"a line\n" * 1000)
    for wrong in (data[:-1], data[:3], data + b"x", data + data[:2], data[:12] + b"\xff\xff" + data[14:]):
        with pytest.raises(DamagedData):
            decompressed(packing, [wrong])


def test_a_frame_that_wants_more_memory_is_refused() -> None:
    options = {ZSTD.CompressionParameter.window_log: 24, ZSTD.CompressionParameter.content_size_flag: 0}
    compressor = ZSTD.ZstdCompressor(options=options)
    data = compressor.compress(bytes(40_000_000)) + compressor.flush()
    with pytest.raises(DamagedData, match="memory"):
        decompressed(FileCompression.ZSTD, [data])


@packings
def test_a_bomb_comes_in_small_pieces(packing: FileCompression) -> None:
    data = PACKERS[packing](bytes(100_000_000))
    tracemalloc.start()
    try:
        count = sum(len(piece) for piece in Decompressor(packing).feed(data))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, most < 2_000_000) == (100_000_000, True)
