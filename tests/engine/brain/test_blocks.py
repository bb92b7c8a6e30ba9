from __future__ import annotations

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


def test_a_released_prefix_is_found_again() -> None:
    pool = BlockPool(4)
    blocks = held(pool, *names(1, 2))
    pool.release(blocks)
    assert (pool.free, pool.cached) == (4, 2)
    assert pool.match(names(1, 2, 3), 3) == blocks
    assert pool.match(names(1, 2, 3), 1) == blocks[:1]
    assert pool.match(names(2), 1) == blocks[1:]  # a hash stands for all before it
    assert pool.match(names(9, 2), 2) == []


def test_a_block_taken_for_something_else_forgets() -> None:
    pool = BlockPool(2)
    pool.release(held(pool, *names(1, 2)))
    pool.take()
    assert pool.match(names(1, 2), 2) == [0]  # the tail went first: the prefix is worth more
    pool.take()
    assert pool.match(names(1), 1) == []
    pool.check([[0, 1]])


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(3)
    cached = held(pool, *names(1))
    pool.release(cached)
    assert cached[0] not in (pool.take(), pool.take())
    assert pool.match(names(1), 1) == cached


def test_the_least_recently_used_is_evicted_first() -> None:
    pool = BlockPool(3)
    first, second, third = (held(pool, *names(n)) for n in (1, 2, 3))
    for row in (first, second, third):
        pool.release(row)
    pool.share(first[0])  # used again
    pool.release(first)
    assert [pool.take() for _ in range(3)] == [*second, *third, *first]


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


def test_the_first_block_of_a_content_stays_the_one_that_is_found() -> None:
    pool = BlockPool(2)
    first, second = held(pool, *names(1)), held(pool, *names(1))
    assert pool.match(names(1), 1) == first
    pool.release(second)
    assert pool.cached == 0  # nobody could find it
    pool.check([first])


def test_forgotten_blocks_are_never_found() -> None:
    pool = BlockPool(2)
    blocks = held(pool, *names(1, 2))
    pool.forget(blocks)
    assert pool.match(names(1, 2), 2) == []
    pool.release(blocks)
    assert (pool.cached, pool.free) == (0, 2)
    pool.check([])


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
    """Rows come, share, publish and go in any order; after each move the audit must pass."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.rows: list[list[int]] = []

    @precondition(lambda self: self.pool.free)
    @rule(published=st.one_of(st.none(), st.integers(0, 5)))
    def take(self, published: int | None) -> None:
        self.rows.append([self.pool.take()])
        if published is not None:
            self.pool.publish(self.rows[-1][0], bytes([published]))

    @rule(chain=st.lists(st.integers(0, 5).map(lambda n: bytes([n])), max_size=4, unique=True))
    def share(self, chain: list[bytes]) -> None:
        found = self.pool.match(chain, len(chain))
        for block in found:
            self.pool.share(block)
        self.rows.append(found)

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), damaged=st.booleans())
    def release(self, data: st.DataObject, damaged: bool) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        if damaged:
            self.pool.forget(row)
        self.pool.release(row)

    @invariant()
    def audit(self) -> None:
        self.pool.check(self.rows)
        assert self.pool.free == 8 - len({block for row in self.rows for block in row})


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_moves = PoolMachine.TestCase
