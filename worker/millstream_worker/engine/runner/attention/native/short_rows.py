"""Lays out steps of decoding rows that are one piece each: most steps are such, and small models wait for
them. The arrays stay where they are: to make some, and to ask for their addresses, took longer than to fill
them.
"""

from __future__ import annotations

import numpy as np

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.native.work_items import (
    PART_KEYS,
    cost_of_key,
    threads_for,
    together,
)
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec
from millstream_worker.engine.runner.native.library import StepNumbers


def short(plan: Plan) -> bool:
    """True if a step has only decoding rows of one piece each, and none share what they read."""
    alone = plan.decodes == len(plan.kv_lens) and not len(plan.prefix_group_lens)
    return alone and int(plan.kv_lens.max()) <= PART_KEYS


class ShortRows:
    """The steps of short rows as layers of one shape see them. They are laid out one at a time."""

    def __init__(self, shape: LayerSpec, block_size: int) -> None:
        self._shape = shape
        self._width = -(-PART_KEYS // block_size)  # blocks of a row
        self._make(64)

    def lay_out(self, plan: Plan) -> StepNumbers:
        """Returns the numbers of a short step, good until the next one."""
        rows, ends, shape = len(plan.kv_lens), plan.kv_lens, self._shape
        if rows > len(self._pieces):
            self._make(2 * rows)
        keys = ends
        if shape.window is not None:
            keys = np.minimum(ends, shape.window)
        order = (-keys).argsort(kind="stable")  # the dearest first
        pieces = self._pieces[:rows]
        pieces[:, 0] = pieces[:, 1] = order
        pieces[:, 4] = ends[order]
        if shape.window is not None:
            pieces[:, 3] = (ends - keys)[order]
        table = plan.block_tables[shape.group][:, : self._width]
        self._table[:rows, : table.shape[1]] = table
        self._positions[:rows] = plan.positions
        self._slots[:rows] = plan.slot_mapping[shape.group]
        numbers = self._numbers
        numbers.piece_count = numbers.tokens = rows
        numbers.threads = threads_for(int(keys.sum()) * cost_of_key(shape) * shape.kv_heads)
        numbers.together = together(rows, numbers.threads, shape)
        return numbers

    def _make(self, rows: int) -> None:
        """Makes room for so many rows; where memory is short, it stays as it was."""
        pieces, table = np.zeros((rows, 6), np.int32), np.zeros((rows, self._width), np.int32)
        pieces[:, 2], pieces[:, 5] = 1, -1
        positions, slots = np.zeros(rows, np.int32), np.zeros(rows, np.int64)
        members, none = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
        numbers = StepNumbers(
            pieces=pieces.ctypes.data,
            splits=none.ctypes.data,
            tables=table.ctypes.data,
            positions=positions.ctypes.data,
            members=members.ctypes.data,
            first_parts=none.ctypes.data,
            slots=slots.ctypes.data,
            parts=none.ctypes.data,
            split_count=0,
            table_width=self._width,
        )
        self._numbers, self._kept = numbers, (members, none)  # which the numbers point into, too
        self._pieces, self._table, self._positions, self._slots = pieces, table, positions, slots
