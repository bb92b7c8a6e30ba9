"""The batch: which row is in which slot, and the counts that move with every step, as vectors over the slots,
so that a decode step is planned and settled by a few numpy calls.

    0              computed        scheduled       known
    ├── in the cache ──┼── in flight ──┼── to do ──┤        tokens of a row, half-open

A row prefills until all its known tokens are scheduled, then it decodes: one token a step. With a step in
flight its next token may be known only to the device: then scheduled == known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.noise import row_key
from millstream_worker.engine.brain.batch.plan import Int32
from millstream_worker.engine.brain.batch.rows import Row


class Batch:
    """`max_rows` slots; a row keeps its slot while it is in the batch. `width`: blocks of the longest row."""

    def __init__(self, max_rows: int, width: int, block_size: int) -> None:
        self.block_size = block_size
        self.rows: list[Row | None] = [None] * max_rows
        self.free_slots = list(range(max_rows - 1, -1, -1))
        self.block_table = np.zeros((max_rows, width), np.int32)  # unused places are 0
        self.entries = np.zeros(max_rows, np.int64)  # number of the row's entry into the batch, from 1
        self.entered = 0
        self.priority = np.zeros(max_rows, np.int64)
        self.interactive = np.zeros(max_rows, np.bool_)  # as requested, not by ageing
        self.random = np.zeros(max_rows, np.bool_)  # its samples depend on noise
        self.constrained = np.zeros(max_rows, np.bool_)  # by a grammar, or limits of tokens
        self.prompt_len = np.zeros(max_rows, np.int32)
        self.rope_offset = np.zeros(max_rows, np.int32)  # of the model's RoPE, behind the prompt
        self.computed = np.zeros(max_rows, np.int32)
        self.scheduled = np.zeros(max_rows, np.int32)
        self.known = np.zeros(max_rows, np.int32)
        self.last_input = np.zeros(max_rows, np.int32)  # final value of `scheduled`, without an end id
        self.last_token = np.zeros(max_rows, np.int32)  # id of the last known token of a decoding row
        self.noise_key = np.zeros(max_rows, np.uint64)
        self.decoding = np.zeros(max_rows, np.bool_)
        self.prefilling = np.zeros(max_rows, np.bool_)
        self._decodes = np.empty(0, np.intp)

    @property
    def occupied(self) -> int:
        return len(self.rows) - len(self.free_slots)

    def enter(self, row: Row, cached: list[int]) -> None:
        """Give a row a slot; `cached` are the blocks it shares, computed already or in a planned step."""
        slot = row.slot = self.free_slots.pop()
        self.rows[slot] = row
        self.entered += 1
        self.entries[slot] = self.entered
        row.published = len(cached)
        self.add_blocks(row, cached)
        self.priority[slot] = row.priority
        self.interactive[slot] = row.origin.request.priority == 0
        self.random[slot] = row.origin.request.sampling.temperature > 0
        self.constrained[slot] = row.matcher is not None
        self.prompt_len[slot] = len(row.origin.prompt)
        self.rope_offset[slot] = row.origin.rope.offset if row.origin.rope else 0
        self.known[slot] = row.known
        self.computed[slot] = self.scheduled[slot] = len(cached) * self.block_size
        self.last_input[slot] = len(row.origin.prompt) + row.max_output - 1
        self.noise_key[slot] = row_key(row.origin.request.sampling.seed, row.choice)
        self.prefilling[slot] = True

    def add_blocks(self, row: Row, blocks: list[int]) -> None:
        held = len(row.blocks)
        row.blocks += blocks
        self.block_table[row.slot, held : len(row.blocks)] = blocks

    def retire(self, row: Row) -> None:
        """Stop planning the row; it keeps its slot until `leave`."""
        self.decoding[row.slot] = self.prefilling[row.slot] = False

    def leave(self, row: Row) -> list[int]:
        """Free the slot; returns the row's blocks, for the pool."""
        assert row.slot is not None, f"row {row.handle} is not in the batch"
        self.block_table[row.slot, : len(row.blocks)] = 0
        self.rows[row.slot] = None
        self.free_slots.append(row.slot)
        blocks, row.blocks, row.slot = row.blocks, [], None
        return blocks

    def at(self, slots: NDArray[np.intp]) -> list[Row]:
        """Returns the rows in these slots, all of them taken."""
        rows = self.rows
        return [rows[slot] for slot in slots.tolist()]

    def decodes(self) -> NDArray[np.intp]:
        """Returns the slots of the rows that decode in the next step, ascending; the same array while they
        are the same rows.
        """
        decodes = (self.decoding & (self.scheduled < self.last_input)).nonzero()[0]
        if decodes.tobytes() != self._decodes.tobytes():  # faster than numpy's comparison of short arrays
            self._decodes = decodes
        return self._decodes

    def running(self) -> NDArray[np.intp]:
        """Returns the slots of the rows that may be planned."""
        slots: NDArray[np.intp] = (self.decoding | self.prefilling).nonzero()[0]
        return slots

    def in_flight(self, row: Row) -> bool:
        """True if a launch that contains the row is not settled yet."""
        return bool(self.computed[row.slot] < self.scheduled[row.slot])

    def unscheduled(self, row: Row) -> int:
        """Returns the number of known tokens that no launch computes yet."""
        return int(self.known[row.slot] - self.scheduled[row.slot])

    def missing_blocks(self, row: Row, tokens: int) -> int:
        """Returns the blocks to add before the row's next `tokens` tokens can be computed."""
        return blocks_for(int(self.scheduled[row.slot]) + tokens, self.block_size) - len(row.blocks)

    def launch(self, slots: NDArray[np.intp], kv_lens: Int32, decodes: int) -> None:
        """Record a launch that computes the rows in these slots up to `kv_lens`; the first `decodes` of them
        decode.
        """
        self.scheduled[slots] = kv_lens
        if len(slots) > decodes:
            slots, kv_lens = slots[decodes:], kv_lens[decodes:]
            prefilled = slots[kv_lens >= self.known[slots]]
            self.prefilling[prefilled] = False
            self.decoding[prefilled] = True

    def settle(self, slots: NDArray[np.intp], kv_lens: Int32) -> None:
        """Record that a launch is settled."""
        self.computed[slots] = kv_lens

    def rewind(self, row: Row, kv_len: int) -> list[int]:
        """Take back what a launch has computed of a row beyond `kv_len` tokens; returns the blocks that it
        does not need any more.
        """
        self.scheduled[row.slot] = kv_len
        needed = blocks_for(kv_len, self.block_size)
        self.block_table[row.slot, needed : len(row.blocks)] = 0
        spare, row.blocks = row.blocks[needed:], row.blocks[:needed]
        return spare

    def append(self, slots: NDArray[np.intp], kv_lens: Int32, tokens: Int32) -> None:
        """Record one sampled token for each of the rows in these slots, at their lengths `kv_lens`; of a slot
        that stands there several times, the last one counts.
        """
        self.known[slots] = kv_lens + 1
        self.last_token[slots] = tokens

    def extend(self, row: Row, tokens: list[int]) -> None:
        """Record tokens that were not sampled, of a row that is not in flight: it prefills them."""
        self.known[row.slot] += len(tokens)
        self.last_token[row.slot] = tokens[-1]
        self.decoding[row.slot], self.prefilling[row.slot] = False, True

    def check(self) -> None:
        """Raises AssertionError if slots, counts and block tables disagree."""
        taken = [slot for slot, row in enumerate(self.rows) if row is not None]
        assert sorted(taken + self.free_slots) == list(range(len(self.rows))), "slots do not add up"
        for slot, row in enumerate(self.rows):
            held = [] if row is None else row.blocks
            assert self.block_table[slot, : len(held)].tolist() == held, f"slot {slot}: wrong block table"
            assert not self.block_table[slot, len(held) :].any(), f"slot {slot}: block table is not cleared"
            if row is not None:
                assert row.slot == slot, f"slot {slot}: its row thinks it is in {row.slot}"
                computed, scheduled = int(self.computed[slot]), int(self.scheduled[slot])
                assert computed <= scheduled <= self.last_input[slot], f"slot {slot}: counts out of order"
                needed = blocks_for(scheduled, self.block_size)
                assert len(held) == needed, f"slot {slot}: {len(held)} blocks for {needed}"


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
