"""Divides the KV pool's memory between keys and values, and recurrent states: those of the rows in the
batch, and of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_worker.engine.runner.kv.pool_size import BadKVMemory, size_name

MOST_PLACES, FEWEST_PLACES = 256, 4  # for checkpoints
_PLACES_SHARE = 0.2  # of what rows leave
_ROWS_SHARE = 1 / 3  # that rows may take where their number is open


@dataclass(frozen=True, slots=True)
class PoolShare:
    """The contents of a pool of some size."""

    blocks: int
    places: int = 0  # for checkpoints of recurrent state


def share_pool(size: int, block_bytes: int, row_bytes: int, rows: int, *, fixed: bool) -> PoolShare:
    """Returns the share of `size` bytes, of a model whose state takes `row_bytes` a row (0: it has none).
    `fixed`: the operator has set the number of rows. Raises BadKVMemory where the states of so many rows take
    too much."""
    if not row_bytes:
        return PoolShare(size // block_bytes)
    left = size - rows * row_bytes
    places = max(FEWEST_PLACES, min(MOST_PLACES, int(left * _PLACES_SHARE) // row_bytes))
    blocks = (left - places * row_bytes) // block_bytes
    if blocks < 1 or (not fixed and rows * row_bytes > size * _ROWS_SHARE):
        raise BadKVMemory(
            f"kv_memory of {size_name(size)}: the recurrent states of {rows} rows take "
            f"{size_name(rows * row_bytes)} of it, {size_name(row_bytes)} each, and each checkpoint as much; "
            "give more, or lower max_rows"
        )
    return PoolShare(blocks, places)


def states_line(rows: int, places: int, row_bytes: int) -> str:
    """Returns the line for people."""
    taken = size_name((rows + places) * row_bytes)
    each = f"{size_name(row_bytes)} each (float32)"
    return f"recurrent states {taken}: {rows:,} rows and {places:,} checkpoints, {each}"
