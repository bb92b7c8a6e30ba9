"""Divides the KV pool's memory between keys and values, and recurrent states: those of the rows in the
batch, and of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from millstream_worker.engine.runner.kv.pool_size import BadKVMemory, size_name

MOST_PLACES, FEWEST_PLACES = 256, 4  # for checkpoints
_PLACES_SHARE = 0.2  # of what rows leave
_ROWS_SHARE = 1 / 3  # that rows may take where their number is open


@dataclass(frozen=True, slots=True)
class StateBytes:
    """The bytes of one row's recurrent state; 0: the model has none."""

    state: int = 0  # as much as a checkpoint
    held: int = 0  # for inputs that may have to be given up

    @property
    def row(self) -> int:
        return self.state + self.held


@dataclass(frozen=True, slots=True)
class PoolShare:
    """The contents of a pool of some size."""

    blocks: int
    places: int = 0  # for checkpoints of recurrent state


def share_pool(size: int, block_bytes: int, each: StateBytes, rows: int, *, fixed: bool) -> PoolShare:
    """Returns the share of `size` bytes. `fixed`: the operator has set the number of rows. Raises BadKVMemory
    where the states of so many rows take too much."""
    if not each.state:
        return PoolShare(size // block_bytes)
    left = size - rows * each.row
    places = max(FEWEST_PLACES, min(MOST_PLACES, int(left * _PLACES_SHARE) // each.state))
    blocks = (left - places * each.state) // block_bytes
    if blocks < 1 or (not fixed and rows * each.row > size * _ROWS_SHARE):
        drafts = f", and {size_name(each.held)} for draft tokens (speculate off: none)" if each.held else ""
        raise BadKVMemory(
            f"kv_memory of {size_name(size)}: {rows} rows take {size_name(rows * each.row)} of it for their "
            f"recurrent states, {size_name(each.state)} each{drafts}; a checkpoint takes "
            f"{size_name(each.state)}; give more, or lower max_rows"
        )
    return PoolShare(blocks, places)


def states_line(rows: int, places: int, each: StateBytes) -> str:
    """Returns the line for people."""
    taken = size_name(rows * each.row + places * each.state)
    line = f"recurrent states {taken}: {rows:,} rows and {places:,} checkpoints, {size_name(each.state)} each"
    return f"{line} (float32)" + (f"; draft tokens {size_name(each.held)} a row" if each.held else "")
