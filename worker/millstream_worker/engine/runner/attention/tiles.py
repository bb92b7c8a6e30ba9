"""Cuts a step into tiles of like shape, so that attention over ragged rows becomes a few dense matrix
products.

A *tile* is up to 128 consecutive new tokens of one row with the blocks that they may see; a decoding row is
a tile of one query. Tiles of similar size share a *bucket*, padded to its largest, as long as the padding
costs less than another bucket would. Nothing here touches keys or values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millstream_worker.engine.brain.plan import Int32, Int64, Plan
from millstream_worker.engine.runner.attention.interface import LayerSpec

MAX_TILE_QUERIES = 128
MIN_TILE_QUERIES = 16
MAX_SCORE_BYTES = 32 << 20  # float32 scores of a bucket
MAX_GATHER_BYTES = (
    6 << 20
)  # keys of a bucket: more would have left the processor's cache before they are used
# Measured on one EPYC core, float32 and bfloat16, heads of 64 and 128:
_FETCH_NS = 0.1  # per byte of keys and values gathered
_MULTIPLY_NS = 0.005  # per byte of keys and values, query and head
_BUCKET_NS = 50_000.0  # the operations of a bucket, however small


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """N tiles as parallel arrays [N]."""

    segments: Int64
    starts: Int64  # packed position of the first query
    queries: Int64
    first_blocks: Int64  # place in the row's block table
    blocks: Int64
    offsets: Int64  # position of the first query, counted from the first block's first token

    def __len__(self) -> int:
        return len(self.segments)

    def take(self, chosen: slice | Int64) -> Tiles:
        return Tiles(*(getattr(self, name)[chosen] for name in self.__slots__))


def cut(plan: Plan, layer: LayerSpec, block_size: int) -> Tiles:
    """The tiles of a step for a layer of these heads and this window."""
    queries = plan.query_lens.astype(np.int64)
    size = _tile_queries(layer, int(plan.kv_lens[plan.decodes :].max(initial=1)))
    pieces = -(-queries // size)
    segments = np.repeat(np.arange(len(queries)), pieces)
    done = (np.arange(len(segments)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * size
    taken = np.minimum(queries[segments] - done, size)
    position = (plan.kv_lens - plan.query_lens)[segments] + done  # of the first query in its row
    seen_from = (
        np.zeros_like(position) if layer.window is None else np.maximum(position - layer.window + 1, 0)
    )
    first_block = seen_from // block_size
    return Tiles(
        segments=segments,
        starts=plan.query_starts[segments] + done,
        queries=taken,
        first_blocks=first_block,
        blocks=-(-(position + taken) // block_size) - first_block,
        offsets=position - first_block * block_size,
    )


def group(tiles: Tiles, layer: LayerSpec, block_size: int, itemsize: int) -> Iterator[Tiles]:
    """The tiles in buckets, most queries first, then longest context. Numbers are of `itemsize` bytes."""
    tiles = tiles.take(np.lexsort((-tiles.blocks, -tiles.queries)))
    token_bytes = (layer.key_dim + layer.value_dim) * itemsize  # of one head
    fetch, multiply = _FETCH_NS * token_bytes * layer.kv_heads, _MULTIPLY_NS * token_bytes * layer.heads
    gathered_bytes = max(layer.key_dim, layer.value_dim) * itemsize * layer.kv_heads
    tokens = tiles.blocks * block_size
    cost = tokens * (fetch + multiply * tiles.queries)
    start = 0
    while start < len(tiles):
        queries = tiles.queries[start]
        padded = np.arange(1, len(tiles) - start + 1) * np.maximum.accumulate(tokens[start:])
        waste = padded * (fetch + multiply * queries) - np.cumsum(cost[start:])
        ends = (
            (waste > _BUCKET_NS)
            | (padded * gathered_bytes > MAX_GATHER_BYTES)
            | (padded * queries * layer.heads * 4 > MAX_SCORE_BYTES)
        )
        count = max(int(ends.argmax()), 1) if ends.any() else len(ends)
        yield tiles.take(slice(start, start + count))
        start += count


def token_index(tiles: Tiles) -> tuple[Int64, Int64]:
    """Each query's packed position, and its position counted as `offsets` are, both [R, q]. A short tile
    repeats its last query, which computes the same answer for the same place once more."""
    query = np.minimum(np.arange(tiles.queries.max()), tiles.queries[:, None] - 1)
    return tiles.starts[:, None] + query, tiles.offsets[:, None] + query


def block_index(tiles: Tiles, table: Int32) -> Int64:
    """The blocks that each tile sees, [R, W]. A tile with fewer repeats its last one, whose tokens then
    count as later than its queries: what another row stores there, numbers or not, stays out of its
    sums."""
    block = np.minimum(np.arange(tiles.blocks.max()), tiles.blocks[:, None] - 1)
    blocks: Int64 = table[tiles.segments[:, None], tiles.first_blocks[:, None] + block].astype(np.int64)
    return blocks


def begun_blocks(slots: Int64, block_size: int) -> Int64:
    """The blocks that a step's tokens begin and do not fill."""
    blocks, offsets = np.divmod(slots, block_size)
    return np.setdiff1d(blocks[offsets == 0], blocks[offsets == block_size - 1])


def _tile_queries(layer: LayerSpec, longest: int) -> int:
    """Fewer queries a tile where the context is long: one tile's scores stay within bounds."""
    fitting = MAX_SCORE_BYTES // (4 * layer.heads * longest)
    return min(max(fitting, MIN_TILE_QUERIES), MAX_TILE_QUERIES)
