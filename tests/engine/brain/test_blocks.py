from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream_worker.engine.brain.cache.blocks import BlockPool


def names(*numbers: int) -> list[bytes]:
    return [bytes([number]) for number in numbers]


def held(pool: BlockPool, *hashes: bytes) -> list[int]:
    """A row's blocks, published under these hashes."""
    blocks = [pool.take() for _ in hashes]
    for block, name in zip(blocks, hashes, strict=True):
        pool.publish(block, name)
    return blocks


def test_shared_blocks_are_free_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    blocks = held(pool, *names(1))
    assert pool.held_once(blocks) == 1
    pool.share(blocks[0])
    assert pool.held_once(blocks) == 0
    pool.release(blocks)
    assert pool.free == 1
    pool.release(blocks)
    assert pool.free == 2
    assert pool.unheld(blocks) == 1
    with pytest.raises(AssertionError, match="released once too often"):
        pool.release(blocks)


def test_the_estimate_counts_a_known_prefix() -> None:
    pool = BlockPool(8)
    held(pool, *names(1, 2, 3))
    assert pool.estimate(names(1, 2, 3, 4, 5)) == 3
    assert pool.estimate(names(1, 2)) == 2
    assert pool.estimate(names(7, 8)) == 0
    assert pool.estimate([]) == 0


@pytest.mark.parametrize("tables", [[[0, 1]], [[0], [0]], []])
def test_check_finds_what_is_wrong(tables: list[list[int]]) -> None:
    pool = BlockPool(3)
    held(pool, *names(1))
    with pytest.raises(AssertionError, match="reference"):
        pool.check(tables)


class PoolMachine(RuleBasedStateMachine):
    """Rows come, share, publish and go in any order; after each move the audit must pass. The first block
    of a content is the one that is found. Blank blocks are taken first; then the least recently used of the
    cached ones, a row's last first, as a prefix is worth more: it forgets its content."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.rows: list[list[int]] = []
        self.found: dict[bytes, int] = {}
        self.cached: list[int] = []  # that nobody holds, the least recently used first

    def forget(self, blocks: list[int]) -> None:
        self.found = {name: block for name, block in self.found.items() if block not in blocks}

    @precondition(lambda self: self.pool.free)
    @rule(published=st.lists(st.none() | st.integers(0, 5), min_size=1, max_size=3))
    def take(self, published: list[int | None]) -> None:
        self.rows.append([self.taken(name) for name in published[: self.pool.free]])

    def taken(self, name: int | None) -> int:
        oldest = None if self.pool.free > len(self.cached) else self.cached.pop(0)
        block = self.pool.take()
        if oldest is None:
            assert block not in self.cached
        else:
            assert block == oldest
            self.forget([block])
        if name is not None:
            self.pool.publish(block, bytes([name]))
            self.found.setdefault(bytes([name]), block)
        return block

    @rule(chain=st.lists(st.integers(0, 5).map(lambda n: bytes([n])), max_size=4, unique=True))
    def share(self, chain: list[bytes]) -> None:
        known = [self.found[name] for name in takewhile(self.found.__contains__, chain)]
        assert self.pool.match(chain, len(chain)) == known
        for block in known:
            self.pool.share(block)
        self.cached = [block for block in self.cached if block not in known]
        self.rows.append(known)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), damaged=st.booleans())
    def release(self, data: st.DataObject, damaged: bool) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        if damaged:
            self.pool.forget(row)
            self.forget(row)
        self.pool.release(row)
        kept = set(self.found.values()).difference(*self.rows)
        self.cached += [block for block in reversed(row) if block in kept]

    @invariant()
    def audit(self) -> None:
        self.pool.check(self.rows)
        assert self.pool.free == 8 - len({block for row in self.rows for block in row})
        assert self.pool.cached == len(self.cached)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_any_order_of_moves = PoolMachine.TestCase
