"""Headers that announce more than their file holds are refused before the reader makes objects of it."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import gguf
import pytest
from support.models.gguf_files import tiny_llama, write_gguf

from millstream_worker.engine.runner.checkpoint.checkpoint import CheckpointError, resolve
from millstream_worker.engine.runner.checkpoint.gguf_header import check_header


def head(tensors: int, fields: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, fields)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def number(name: str, value: int) -> bytes:
    return text(name) + struct.pack("<IQ", 10, value)


def array(kind: int, count: int) -> bytes:
    return text("a.b") + struct.pack("<IIQ", 9, kind, count)


def tensor(dimensions: tuple[int, ...], offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return text("token_embd.weight") + sizes + struct.pack("<IQ", 0, offset)


LLAMA = text("general.architecture") + struct.pack("<I", 8) + text("llama")
BAD = {
    "tensor_count is 1152921504606846976": head(2**60, 1) + LLAMA,
    "kv_count is 1152921504606846976": head(0, 2**60) + LLAMA,
    "the end of a name in the metadata is": head(0, 1) + struct.pack("<Q", 2**60) + b"x" * 100,
    "the end of general.name is": head(0, 1) + text("general.name") + struct.pack("<IQ", 8, 2**60),
    "the length of a.b is 1099511627776": head(0, 2) + LLAMA + array(0, 2**40) + b"x" * 1000,
    "the end of a.b is": head(0, 2) + LLAMA + array(8, 1000) + b"\0" * 4096,
    "the length of arrays up to a.b is 5000000": head(0, 2) + LLAMA + array(0, 5_000_000) + b"x" * 5_000_000,
    "the depth of a.b is 2": head(0, 2) + LLAMA + array(9, 1) + struct.pack("<IQ", 9, 1) * 5000,
    "general.name has the type 255": head(0, 1) + text("general.name") + struct.pack("<I", 255) + b"x" * 64,
    "the dimensions of token_embd.weight is": head(1, 1) + LLAMA + text("token_embd.weight") + b"\xff" * 64,
    "the weights of token_embd.weight is": head(1, 1) + LLAMA + tensor((2**60, 2**60)),
    "the offset of token_embd.weight is": head(1, 1) + LLAMA + tensor((64,), 2**50),
    "block_count 1000000000": head(0, 1) + number("llama.block_count", 10**9),
    "embedding_length is 0": head(0, 1) + number("llama.embedding_length", 0),
}


@pytest.mark.parametrize("says", BAD)
def test_what_is_out_of_bounds_is_named(says: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(BAD[says])
    with pytest.raises(CheckpointError, match=re.escape(says)) as refused:
        resolve(str(file), str(tmp_path / "cache"), lambda message: None)
    assert str(refused.value).startswith(f"model '{file}': ")
    assert "anew" in str(refused.value)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_headers_of_whole_files_are_taken(kind: str, tmp_path: Path) -> None:
    check_header(write_gguf(tmp_path / "tiny.gguf", tiny_llama(), gguf.GGMLQuantizationType[kind]))


def test_the_other_order_of_bytes_is_read(tmp_path: Path) -> None:
    file = tmp_path / "big.gguf"
    file.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 2**60, 0))
    with pytest.raises(ValueError, match="tensor_count is 1152921504606846976"):
        check_header(file)
