"""Which rows' block tables begin alike: a radix tree over them (https://en.wikipedia.org/wiki/Radix_tree).
Knows slots and block ids, no tokens.

    tables   slot 0: A B x     slot 1: A B y     slot 2: A z     slot 3: w

    root ──A──▶ 1 block ──B──▶ 2 blocks ──x──▶ slot 0
      │            └──z──▶ slot 2  └──y──▶ slot 1
      └──w──▶ slot 3

A row must hold a block that no other row holds, before the unused places of its table: the one that its next
token goes into. So no table is the beginning of another, and each slot is a leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from millstream_worker.engine.brain.batch.plan import Int32


@dataclass(slots=True, eq=False)
class Node:
    """The common prefix of all rows below."""

    depth: int  # blocks
    place: tuple[Node, int] | None = None  # the node above, and the block that leads from it to here
    forks: dict[int, Node] = field(default_factory=dict)  # nodes below, by the next block
    slots: dict[int, int] = field(default_factory=dict)  # rows that continue alone, by the next block

    def any_slot(self) -> int:
        node = self
        while not node.slots:
            node = next(iter(node.forks.values()))
        return next(iter(node.slots.values()))

    def nodes(self) -> Iterator[Node]:
        """This node and all below, each before its descendants."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.forks.values()


class PrefixTree:
    """`tables` [slots, blocks]: block tables, read when a slot is inserted; those of the slots in the tree
    must not change.
    """

    def __init__(self, tables: Int32) -> None:
        self._tables = tables
        self._root = Node(0)
        self._places: dict[int, tuple[Node, int]] = {}  # by slot: the node above, and the block to it

    def branch(self, block: int) -> Node | None:
        """The longest common prefix of all rows that begin with this block; None for fewer than two."""
        return self._root.forks.get(block)

    def insert(self, slot: int) -> int:
        """Insert a row; returns its first block."""
        table = self._tables[slot]
        path = [self._root]
        while (fork := path[-1].forks.get(int(table[path[-1].depth]))) is not None:
            path.append(fork)
        other = path[-1].slots.get(int(table[path[-1].depth]))
        if other is None and len(path) > 1:
            other = path[-1].any_slot()
        if other is None:
            self._hang(self._root, int(table[0]), slot)
        else:
            self._fork(path, slot, other)
        return int(table[0])

    def remove(self, slot: int) -> None:
        node, block = self._places.pop(slot)
        del node.slots[block]
        if node.place is None or len(node.slots) + len(node.forks) > 1:
            return
        above, block = node.place  # a fork with one branch is removed
        del above.forks[block]
        left: list[Node | int] = [*node.slots.values(), *node.forks.values()]
        self._hang(above, block, left[0])

    def _hang(self, node: Node, block: int, child: Node | int) -> None:
        if isinstance(child, Node):
            node.forks[block] = child
            child.place = (node, block)
        else:
            node.slots[block] = child
            self._places[child] = (node, block)

    def _fork(self, path: list[Node], slot: int, other: int) -> None:
        """Insert a slot where it leaves the path to `other`, the slot with the longest common prefix."""
        differ = self._tables[slot] != self._tables[other]
        common = int(differ.argmax())
        assert differ[common], f"slots {slot} and {other} hold the same blocks"
        while path[-1].depth > common:
            path.pop()
        node = path[-1]
        if node.depth < common:
            block = int(self._tables[slot, node.depth])
            below: Node | int = node.slots.pop(block) if block in node.slots else node.forks.pop(block)
            fork = Node(common)
            self._hang(node, block, fork)
            self._hang(fork, int(self._tables[other, common]), below)
            node = fork
        self._hang(node, int(self._tables[slot, common]), slot)
