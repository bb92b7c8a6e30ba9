"""The second tier of the KV pool: pages in host memory, for blocks of preempted rows that are evicted before
their rows come back. Knows slots and hashes, no memory.

A page is found by the hash of its block, belongs to no row, and is evicted least recently used first: so
nothing has to be freed when a row is aborted. Within a plan all copies out precede all copies in; a slot that
a plan reads or writes has no other use in that plan.

    evicted from the pool ──▶ keep() ──▶ page ──▶ fetch() ──▶ a fresh block of the pool; the page stays
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from millstream_worker.engine.brain.batch.plan import Int32


class HostPool:
    """`slots`: places for pages. `most`: pages that one plan copies each way."""

    def __init__(self, slots: int, most: int) -> None:
        self.total = slots
        self._worth = True
        self.kept = self.fetched = 0  # pages, since the start
        self._most = most
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # by hash, least recently used first
        self._free = list(range(slots - 1, -1, -1))
        self._busy: set[int] = set()  # slots of the copies of this plan
        self._outs: list[tuple[int, int]] = []  # block, slot
        self._ins: list[tuple[int, int]] = []  # slot, block

    @property
    def used(self) -> int:
        return len(self._slots)

    def weigh(self, copied_s: float, computed_s: float) -> None:
        """From now on, keep and fetch pages only if a block is copied back faster than computed again (0:
        unknown)."""
        self._worth = not computed_s or copied_s < computed_s

    def keep(self, block: int, block_hash: bytes) -> None:
        """Keep the page of a block that is about to be reused, if there is a place for it."""
        if block_hash in self._slots:
            self._slots.move_to_end(block_hash)
            return
        if not self._worth or len(self._outs) >= self._most:
            return
        slot = self._place()
        if slot is not None:
            self._slots[block_hash] = slot
            self._busy.add(slot)
            self._outs.append((block, slot))
            self.kept += 1

    def fetch(self, chain: Sequence[bytes]) -> list[int]:
        """The slots of the pages of a hash chain's prefix; each must be passed to `bring`."""
        slots: list[int] = []
        if not self._worth:
            return slots
        for block_hash in chain[: self._most - len(self._ins)]:
            slot = self._slots.get(block_hash)
            if slot is None:
                break
            self._slots.move_to_end(block_hash)
            slots.append(slot)
        self._busy.update(slots)
        return slots

    def bring(self, slot: int, block: int) -> None:
        """Copy a page that `fetch` has found into a block taken for it."""
        self._ins.append((slot, block))
        self.fetched += 1

    def drop(self, block_hash: bytes) -> None:
        """Remove a page: its content is damaged."""
        slot = self._slots.pop(block_hash, None)
        if slot is not None:
            self._free.append(slot)

    def take_copies(self) -> tuple[Int32, Int32]:
        """The copies of the plan under construction: out [O, 2] block and slot; in [I, 2] slot and block."""
        copies = (_pairs(self._outs), _pairs(self._ins))
        self._outs, self._ins, self._busy = [], [], set()
        return copies

    def check(self) -> None:
        """AssertionError if slots do not add up, or copies of a plan are left."""
        assert sorted([*self._slots.values(), *self._free]) == list(range(self.total)), "a host slot is lost"
        assert (self._outs, self._ins, self._busy) == ([], [], set()), "copies without a plan"

    def _place(self) -> int | None:
        """A slot that this plan does not use. Those in use were used last."""
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index] not in self._busy:
                return self._free.pop(index)
        oldest = next(iter(self._slots), None)
        if oldest is None or self._slots[oldest] in self._busy:
            return None
        return self._slots.pop(oldest)


def _pairs(pairs: list[tuple[int, int]]) -> Int32:
    return np.array(pairs, np.int32).reshape(len(pairs), 2)
