"""Who reads what with whom: prefix groups are true, disjoint, and save what the best choice saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream_worker.engine.brain.batch.batch import Batch
from millstream_worker.engine.brain.batch.shared_prefixes import PrefixGroups, SharedPrefixes, SharingCosts

FREE = SharingCosts(row=0, step=0)
BLOCK = 16
Row = tuple[int, ...]


class Desk:
    """A batch whose rows have the given beginnings, a number for each block; after it a block of its own."""

    def __init__(self, costs: SharingCosts | None = FREE, slots: int = 8) -> None:
        self.batch = Batch(slots, 12, BLOCK)
        self.sharing = SharedPrefixes(self.batch, costs)
        self.rows: dict[int, Row] = {}
        self._own = 10**6

    def seat(self, slot: int, row: Row) -> None:
        self._own += 1
        self.rows[slot] = row
        self.batch.block_table[slot] = 0
        self.batch.block_table[slot, : len(row) + 1] = [*row, self._own]
        self.batch.entered += 1
        self.batch.entries[slot] = self.batch.entered

    def leave(self, slot: int) -> None:
        del self.rows[slot]
        self.batch.block_table[slot] = 0

    def groups(self) -> PrefixGroups:
        return self.sharing.groups(np.array(sorted(self.rows), np.intp))

    def found(self) -> set[tuple[int, tuple[int, ...]]]:
        """Blocks shared, and the slots that share them."""
        groups, slots = self.groups(), np.array(sorted(self.rows), np.intp)
        cut = [slots[groups.segments[a:b]] for a, b in pairwise(groups.starts)]
        return {
            (int(tokens) // BLOCK, tuple(sorted(members.tolist())))
            for tokens, members in zip(groups.lens, cut, strict=True)
        }

    def check(self) -> int:
        """Prefix groups are true; returns the blocks that they save."""
        groups, table = self.groups(), self.batch.block_table[sorted(self.rows)]
        assert len(set(groups.segments.tolist())) == len(groups.segments), "a row in two prefix groups"
        saved = 0
        for tokens, (start, end) in zip(groups.lens, pairwise(groups.starts), strict=True):
            blocks, members = int(tokens) // BLOCK, groups.segments[start:end]
            assert tokens % BLOCK == 0
            assert len(members) >= 2
            assert blocks >= 1
            assert (table[members, :blocks] == table[members[0], :blocks]).all()
            saved += (len(members) - 1) * blocks
        return saved


def path(blocks: str) -> Row:
    """Letters for blocks, each its own in its place behind those before it, as the pool has them."""
    return tuple(hash_of(blocks[: end + 1]) for end in range(len(blocks)))


@cache
def hash_of(beginning: str) -> int:
    return 1 + int.from_bytes(beginning.encode()) % 999_983


def seated(*rows: str, costs: SharingCosts | None = FREE) -> Desk:
    desk = Desk(costs)
    for slot, row in enumerate(rows):
        desk.seat(slot, path(row))
    return desk


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        (["abx", "aby"], {(2, (0, 1))}),
        (["ab", "ab", "ab"], {(2, (0, 1, 2))}),
        (["ab", "abcd"], {(2, (0, 1))}),
        (["a", "b", ""], set()),
        (["x", "", ""], set()),
        (["ax", "bx", "ay", "by"], {(1, (0, 2)), (1, (1, 3))}),
        (["abcx", "abcy", "abz"], {(2, (0, 1, 2))}),  # 4 blocks saved, and by the two alone 3
        (["abcdefx", "abcdefy", "abz"], {(6, (0, 1))}),  # 6, and together 4
        (["sabcd", "sabcd", "sefgh", "sefgh", "si", "sj"], {(5, (0, 1)), (5, (2, 3)), (1, (4, 5))}),
        (["abcx", "abcy", "abd", "abe"], {(2, (0, 1, 2, 3))}),  # 6, and in two 3 + 2
    ],
)
def test_which_rows_read_together(rows: Sequence[str], groups: set[tuple[int, tuple[int, ...]]]) -> None:
    assert seated(*rows).found() == groups


def test_equal_blocks_behind_different_ones_are_not_shared() -> None:
    desk = Desk()
    for slot, row in enumerate([(1, 2, 3), (4, 2, 3), (1, 5, 3)]):
        desk.seat(slot, row)
    assert desk.found() == {(1, (0, 2))}


def test_what_costs_more_than_it_saves_is_left() -> None:
    rows = ["abc", "abc", "abc"]  # 96 tokens saved
    assert seated(*rows, costs=SharingCosts(row=0, step=96)).found() == {(3, (0, 1, 2))}
    assert seated(*rows, costs=SharingCosts(row=0, step=97)).found() == set()
    assert seated(*rows, costs=SharingCosts(row=31, step=0)).found() == {(3, (0, 1, 2))}
    assert seated(*rows, costs=SharingCosts(row=32, step=0)).found() == set()


def test_several_prefix_groups_bear_the_cost_of_a_step_together() -> None:
    rows = ["ab", "ab", "cd", "cd"]
    assert len(seated(*rows, costs=SharingCosts(row=0, step=64)).found()) == 2
    assert len(seated(*rows[:2], costs=SharingCosts(row=0, step=64)).found()) == 0


def test_the_longest_beginning_comes_first() -> None:
    assert seated("a", "a", "bcd", "bcd", "ef", "ef").groups().lens.tolist() == [48, 32, 16]


def test_no_change_no_work() -> None:
    desk = seated("ab", "ab", "cd")
    assert desk.groups() is desk.groups()


def most_saved(rows: Sequence[Row]) -> int:
    """By trying all: each row reads its beginning up to some length with those that read the same."""
    if not rows:
        return 0
    first, rest = rows[0], rows[1:]
    best = most_saved(rest)
    for length in range(1, len(first) + 1):
        alike = [i for i, row in enumerate(rest) if row[:length] == first[:length]]
        for chosen in range(1, 1 << len(alike)):
            members = {place for bit, place in enumerate(alike) if chosen >> bit & 1}
            others = [row for i, row in enumerate(rest) if i not in members]
            best = max(best, len(members) * length + most_saved(others))
    return best


DOCUMENTS = st.sampled_from(["aaa", "bbb", "ccc"])
BEGINNINGS = st.one_of(
    st.text("ab", max_size=4),
    st.builds(lambda document, tail: "ssssss" + document + tail, DOCUMENTS, st.text("xy", max_size=2)),
    st.sampled_from(["", "p", "pqrst", "pqrstu", "pqrstuvw"]),
)


@settings(max_examples=150)
@given(st.lists(BEGINNINGS, max_size=6))
def test_it_saves_nearly_as_much_as_the_best_choice(rows: list[str]) -> None:
    saved, best = seated(*rows).check(), most_saved([path(row) for row in rows])
    assert 0.75 * best <= saved <= best


TWO_CUTS = st.builds(
    lambda system, document, tail: system + document + tail,
    st.sampled_from(["", "s", "ssss"]),
    st.sampled_from(["", "dd", "eeee"]),
    st.sampled_from(["x", "y", "z", "u", "v", "w"]),
)


@settings(max_examples=150)
@given(st.lists(TWO_CUTS, max_size=6, unique=True))
def test_the_best_groups_are_chosen_where_prefixes_are_nested(rows: list[str]) -> None:
    assert seated(*rows).check() == most_saved([path(row) for row in rows])


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), BEGINNINGS)), max_size=40), st.data())
def test_rows_come_and_go(moves: list[tuple[int, str | None]], data: st.DataObject) -> None:
    """After any moves the prefix groups are those of the same rows in a new batch, up to equally good
    choices."""
    desk = Desk()
    for slot, row in moves:
        if row is not None:
            desk.seat(slot, path(row))
        elif slot in desk.rows:
            desk.leave(slot)
        if data.draw(st.booleans()):
            saved = desk.check()
            fresh = Desk()
            for taken, blocks in desk.rows.items():
                fresh.seat(taken, blocks)
            assert saved == fresh.check()
