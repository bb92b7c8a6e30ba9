"""How many queries a program computes: the sizes of tiles, which the kernels are compiled for."""

from __future__ import annotations

from millstream_worker.engine.runner.kv.layer_spec import LayerSpec

LEAST_DOT = 16  # sides of a tensor core's matrix product
TILE_QUERIES = 64  # query heads of a tile, of several rows that share keys
PREFILL_QUERIES = 128  # of several tokens of a row
NARROW_HEAD, WIDE_HEAD = 256, 512  # bytes of a head's key or value


def tile_rows(spec: LayerSpec, itemsize: int) -> int:
    """Rows of a tile of a prefix group: their query heads of one KV head fill it. In float32 they are half as
    many: more have no room in registers, nor, 256 wide, in the shared memory of compute capability 8.6."""
    queries = TILE_QUERIES if itemsize < 4 else TILE_QUERIES // 2
    return max(1, queries // (spec.heads // spec.kv_heads))


def tile_tokens(spec: LayerSpec, itemsize: int) -> int:
    """Tokens of a prefill tile. Those of narrow heads are twice as large, for eight warps, so that keys are
    read half as often. Few new tokens leave most of such a tile empty, and cost little more for it: what a
    tile reads then takes longer than what it computes. So there is one size, and one kernel to compile."""
    if itemsize == 4 or head_bytes(spec, itemsize) > NARROW_HEAD:
        return tile_rows(spec, itemsize)
    return max(1, PREFILL_QUERIES // (spec.heads // spec.kv_heads))


def head_bytes(spec: LayerSpec, itemsize: int) -> int:
    return max(spec.key_dim, spec.value_dim) * itemsize


def padded(size: int, least: int) -> int:
    """The next power of two: what Triton's blocks are made of."""
    return max(least, 1 << (size - 1).bit_length())
