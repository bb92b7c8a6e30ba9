"""Chooses the decoding rows that read a common prefix together: once for all, instead of once a row. The
state is kept from step to step: a row's prefix never changes while it is in the batch, so that only rows that
start or stop decoding cost anything.

Prefix groups are one level deep: a row reads its prefix with one prefix group, and the rest alone. From the
longest common prefixes to the shortest, a prefix group is made of the rows without one, and absorbs groups
made before that save less than their rows would save in it. That is optimal for two nested prefixes
(documents under one system prompt), and nearly optimal for three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from millstream_worker.engine.brain.batch.batch import Batch
from millstream_worker.engine.brain.batch.plan import Int32
from millstream_worker.engine.brain.batch.prefix_tree import Node, PrefixTree


@dataclass(frozen=True, slots=True)
class SharingCosts:
    """The cost of reading together, in tokens of one row's context that could be read instead; estimates for
    a GPU, which reads some thousand tokens of a layer in the time of one more kernel. A prefix group pays if
    it saves more than that.
    """

    row: int = 16  # to combine a row's two parts: its heads' partial sums, written and read
    step: int = 4096  # the additional kernels of a step that has any prefix group


@dataclass(frozen=True, slots=True, eq=False)
class PrefixGroup:
    slots: list[int]
    tokens: int  # shared by its rows
    saved: int  # tokens not read because of it, minus its cost


@dataclass(frozen=True, slots=True, eq=False)
class PrefixGroups:
    """The prefix groups of a plan, in the plan's layout."""

    lens: Int32  # [F]
    starts: Int32  # [F + 1]
    segments: Int32  # [M]


class SharedPrefixes:
    """The prefix groups of one batch. `costs` None: nothing is shared."""

    def __init__(self, batch: Batch, costs: SharingCosts | None) -> None:
        self._batch = batch
        self._costs = costs
        self._tree = PrefixTree(batch.block_table)
        self._entries = np.zeros_like(batch.entries)  # entries of the rows that decode; 0: none in the slot
        self._first_blocks: dict[int, int] = {}  # by slot
        self._groups: dict[int, list[PrefixGroup]] = {}  # by first block
        self._decodes = np.empty(0, np.intp)  # of the last call
        self._answer = pack([], self._decodes)

    def groups(self, decodes: NDArray[np.intp]) -> PrefixGroups:
        """The prefix groups of the rows in these slots (ascending), whose next blocks are in the block table;
        segment i is slot i of them. The same array means the same rows.
        """
        if self._costs is None or decodes is self._decodes:
            return self._answer
        self._decodes = decodes
        entries = np.zeros_like(self._entries)
        entries[decodes] = self._batch.entries[decodes]
        changed = np.flatnonzero(entries != self._entries)
        if len(changed):
            left, joined = changed[self._entries[changed] > 0], changed[entries[changed] > 0]
            self._entries = entries
            self._update(left.tolist(), joined.tolist(), self._costs)
            self._answer = pack(self._worthwhile(self._costs), decodes)
        return self._answer

    def _update(self, left: Iterable[int], joined: Iterable[int], costs: SharingCosts) -> None:
        touched = set()
        for slot in left:
            self._tree.remove(slot)
            touched.add(self._first_blocks.pop(slot))
        for slot in joined:
            first = self._first_blocks[slot] = self._tree.insert(slot)
            touched.add(first)
        for first in touched:
            node = self._tree.branch(first)
            chosen = choose(node, self._batch.block_size, costs) if node else []
            if chosen:
                self._groups[first] = chosen
            else:
                self._groups.pop(first, None)

    def _worthwhile(self, costs: SharingCosts) -> list[PrefixGroup]:
        """The prefix groups, if all together are worth it; the longest first, as they take longest."""
        found = [group for groups in self._groups.values() for group in groups]
        if sum(group.saved for group in found) < costs.step:
            return []
        return sorted(found, key=lambda group: -group.tokens)


def choose(top: Node, block_size: int, costs: SharingCosts) -> list[PrefixGroup]:
    """Prefix groups of the rows below a node."""
    # slots without a prefix group, and the prefix groups
    chosen: dict[Node, tuple[list[int], list[PrefixGroup]]] = {}
    for node in reversed(list(top.nodes())):
        slots, groups = list(node.slots.values()), []
        for fork in node.forks.values():
            single, made = chosen.pop(fork)
            slots += single
            groups += made
        chosen[node] = _cut(slots, groups, node.depth * block_size, costs)
    return chosen[top][1]


def _cut(
    slots: list[int], groups: list[PrefixGroup], tokens: int, costs: SharingCosts
) -> tuple[list[int], list[PrefixGroup]]:
    """The slots without a prefix group, and the prefix groups, with one of this prefix if it is worth it."""
    gain = tokens - costs.row  # for each row that does not read them itself
    taken = [group for group in groups if len(group.slots) * gain > group.saved]
    members = slots + [slot for group in taken for slot in group.slots]
    saved = len(members) * gain - tokens
    if saved <= sum(group.saved for group in taken):
        return slots, groups
    return [], [
        *(group for group in groups if group not in taken),
        PrefixGroup(members, tokens, saved),
    ]


def pack(groups: list[PrefixGroup], decodes: NDArray[np.intp]) -> PrefixGroups:
    starts = list(accumulate((len(group.slots) for group in groups), initial=0))
    slots = np.array([slot for group in groups for slot in group.slots], np.intp)
    return PrefixGroups(
        lens=np.array([group.tokens for group in groups], np.int32),
        starts=np.array(starts, np.int32),
        segments=np.searchsorted(decodes, slots).astype(np.int32),
    )


def spread(groups: PrefixGroups, segments: NDArray[np.int32]) -> PrefixGroups:
    """The prefix groups where member i has become `segments` [members of the plan] segments side by side."""
    if not len(groups.segments):
        return groups
    counts = segments[groups.segments]
    firsts = (np.cumsum(segments) - segments)[groups.segments]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.concatenate(([0], np.cumsum(counts)))[groups.starts]
    return PrefixGroups(
        lens=groups.lens,
        starts=starts.astype(np.int32),
        segments=(np.repeat(firsts, counts) + within).astype(np.int32),
    )
