"""What waiting rows are told of the pool is what the pool holds, through any order of its changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream_worker.engine.brain.batch.rows import Row
from millstream_worker.engine.brain.cache.blocks import BlockPool
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.waiting.prefixes import Prefixes
from millstream_worker.engine.brain.waiting.row_factory import RowFactory
from millstream_worker.engine.protocol.request import EngineRequest

ROW_FACTORY = RowFactory(
    SchedulerConfig(1, 1, block_size=1, blocks=999, context_length=999, prefix_cache=True, hash_seed=b"")
)


def row_of(*prompt: int) -> Row:
    return ROW_FACTORY.rows(EngineRequest(0, prompt, 5))[0]


def publish(pool: BlockPool, row: Row, blocks: int) -> list[int]:
    held = [pool.take() for _ in range(blocks)]
    for block, name in zip(held, row.chain, strict=False):
        pool.publish(block, name)
    return held


def test_a_row_is_named_once_its_prefix_has_grown() -> None:
    pool = BlockPool(20)
    prefixes, row, other = Prefixes(pool), row_of(1, 2, 3, 4), row_of(9, 9)
    assert prefixes.watch(row) == prefixes.watch(other) == (0, 0)
    assert prefixes.grown() == []
    publish(pool, row, 2)
    assert prefixes.grown() == [row]
    assert prefixes.watch(row) == (2, row.arrival)
    assert prefixes.grown() == []
    publish(pool, row_of(1, 2, 3, 4), 4)
    assert prefixes.grown() == [row]
    assert prefixes.watch(row)[0] == 4
    prefixes.check([row, other])


def test_rows_with_the_same_cached_prefix_are_one_group() -> None:
    pool = BlockPool(20)
    first, second, other = row_of(1, 2, 3), row_of(1, 2, 4), row_of(5, 6, 7)
    publish(pool, first, 2)
    publish(pool, other, 2)
    prefixes = Prefixes(pool)
    groups = [prefixes.watch(row)[1] for row in (first, second, other)]
    assert groups == [first.arrival, first.arrival, other.arrival]
    prefixes.forget(first)
    assert prefixes.watch(row_of(1, 2, 5))[1] == first.arrival  # while one of them waits


class Watching(RuleBasedStateMachine):
    """Rows wait, blocks are published and evicted; what was not named has no more cached than it had."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.prefixes = Prefixes(self.pool)
        self.cached: dict[Row, int] = {}

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def wait(self, prompt: list[int]) -> None:
        row = row_of(*prompt)
        self.cached[row] = self.prefixes.watch(row)[0]

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(list(self.cached)))
        self.prefixes.forget(row)
        del self.cached[row]

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def compute(self, prompt: list[int]) -> None:
        """Some row runs on what is cached of it, and ends; what was used least lately is evicted."""
        row = row_of(*prompt)
        found = self.pool.match(row.chain, len(prompt))
        for block in found:
            self.pool.share(block)
        fresh = [self.pool.take() for _ in range(len(found), len(prompt))]
        for block, name in zip(fresh, row.chain[len(found) :], strict=True):
            self.pool.publish(block, name)
        self.pool.release([*found, *fresh])

    @rule()
    def look(self) -> None:
        for row in self.prefixes.grown():
            assert row in self.cached, "it waits no more"
            self.cached[row] = self.prefixes.watch(row)[0]
        for row, cached in self.cached.items():
            assert self.pool.estimate(row.chain) <= cached

    @invariant()
    def audit(self) -> None:
        self.prefixes.check(self.cached)


Watching.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
test_no_growth_is_missed = Watching.TestCase
