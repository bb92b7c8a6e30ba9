from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from millstream_worker.engine.brain.batch.rows import Row, RowState
from millstream_worker.engine.brain.cache.blocks import BlockPool
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.brain.waiting.prefixes import Prefixes
from millstream_worker.engine.brain.waiting.row_factory import RowFactory
from millstream_worker.engine.brain.waiting.waiting_rows import AGED_TURN, MAX_TENANTS, WaitingRows
from millstream_worker.engine.protocol.request import EngineRequest

BLOCK = 4


class Queue:
    """Waiting rows over a pool in which `hits` blocks of each row's own prompt are; rows are known by their
    handles."""

    def __init__(self, patience_s: float = 1e9, own_turn: int = AGED_TURN) -> None:
        self.pool = BlockPool(1000)
        self.rows = WaitingRows(patience_s, Prefixes(self.pool), own_turn)
        self._row_factory = RowFactory(
            SchedulerConfig(1, 1, BLOCK, blocks=9999, context_length=9999, prefix_cache=True, hash_seed=b"")
        )

    def add(self, handle: int, *, now: float = 0.0, hits: int = 0, max_tokens: int = 9, **fields: Any) -> Row:
        prompt = tuple(range(100 * handle, 100 * handle + BLOCK * hits + 1))
        row = self.waiting(EngineRequest(handle, fields.pop("prompt", prompt), max_tokens, **fields), now)
        self.publish(row, hits)
        return row

    def waiting(self, request: EngineRequest, now: float = 0.0) -> Row:
        (row,) = self._row_factory.rows(request)
        self.rows.add(row, now)
        return row

    def publish(self, row: Row, blocks: int) -> list[int]:
        """Hold the row's first so many blocks, and let them be found."""
        held = [self.pool.take() for _ in range(blocks)]
        for block, name in zip(held, row.chain, strict=False):
            self.pool.publish(block, name)
        return held

    def admit(self, rows: int, now: float = 0.0, tokens: int = 0) -> list[int]:
        """Let so many in, each of which computes so many tokens."""
        admitted: list[int] = []
        if rows:
            for row in self.rows.order(now):
                self.rows.admit(row, now)
                row.move(RowState.RUNNING)
                self.rows.charge(row, tokens)
                admitted.append(row.handle)
                if len(admitted) == rows:
                    break
        return admitted


def test_lane_then_deadline_then_cached_prefix_then_arrival() -> None:
    queue = Queue()
    queue.add(1, priority=1)
    queue.add(2, priority=1, hits=3)
    queue.add(3, priority=1, deadline_ms=2000)
    queue.add(4, priority=1, deadline_ms=1000)
    queue.add(5, priority=1, deadline_ms=1000, hits=1)
    queue.add(6, priority=0)
    queue.add(7, priority=0, hits=1)
    removed = queue.add(9, priority=0, hits=9)
    queue.add(8, priority=1)
    queue.rows.remove(removed)
    assert queue.admit(9) == [7, 6, 5, 4, 3, 2, 1, 8]
    assert len(queue.rows) == 0


def test_rows_that_were_in_the_batch_lead_their_lane_by_group() -> None:
    queue = Queue()
    rows = [queue.add(n, prompt=(*document(1 + n % 2), n), max_tokens=9 + 90 * (n == 2)) for n in range(4)]
    queue.add(5, deadline_ms=1)
    queue.add(6, priority=0)
    for row in rows:
        queue.rows.remove(row)
        row.entered = True
        queue.rows.add(row, 0.0)
    queue.publish(rows[1], 3)
    assert queue.admit(6) == [6, 1, 3, 0, 2, 5]


def test_the_longest_prefix_is_found_wherever_it_waits() -> None:
    queue = Queue()
    for handle in range(200):
        queue.add(handle, hits=handle % 7 == 3)
    assert queue.admit(29) == list(range(3, 200, 7))


def document(number: int) -> tuple[int, ...]:
    return tuple(range(10_000 * number, 10_000 * number + 3 * BLOCK))


def test_a_group_follows_its_first_row_before_the_next_group() -> None:
    """Two documents are asked about in turn; nothing of either is cached before its first row gets in."""
    queue = Queue()
    for handle in range(200):
        queue.add(handle, prompt=(*document(1 + handle % 2), handle))
    admitted: list[int] = []
    for row in queue.rows.order(0.0):
        queue.rows.admit(row, 0.0)
        queue.publish(row, 3)
        admitted.append(row.handle)
    assert admitted == [*range(0, 200, 2), *range(1, 200, 2)]


def test_of_two_cached_groups_one_is_finished_first() -> None:
    queue = Queue()
    rows = [queue.add(handle, prompt=(*document(1 + handle % 2), handle)) for handle in range(10)]
    queue.publish(rows[1], 3)
    queue.publish(rows[0], 3)
    groups = [handle % 2 for handle in queue.admit(10)]
    assert groups in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)


def test_a_prefix_that_was_evicted_counts_no_more() -> None:
    queue = Queue()
    queue.add(1)
    row = queue.add(2, prompt=(*document(1), 7))
    queue.pool.release(queue.publish(row, 3))
    assert next(queue.rows.order(0.0)) is row
    while queue.pool.free:
        queue.pool.take()
    assert queue.admit(2) == [1, 2]


def test_batch_rows_that_arrived_together_go_longest_first() -> None:
    queue = Queue(patience_s=10.0)
    for handle, max_tokens in enumerate((5, 50, 300)):
        queue.add(handle, max_tokens=max_tokens, now=1.0)
        queue.add(10 + handle, max_tokens=10 * max_tokens, now=10.0)
        queue.add(20 + handle, max_tokens=max_tokens, priority=0, now=1.0)
    assert queue.admit(9, now=10.5) == [20, 21, 22, 2, 1, 0, 12, 11, 10]


def test_a_row_is_overtaken_by_longer_ones_of_its_time_only() -> None:
    queue = Queue(patience_s=5.0, own_turn=10**9)
    queue.add(1, max_tokens=5)
    for number in range(40):
        queue.add(100 + number, now=float(number), max_tokens=50)
        if 1 in queue.admit(1, now=float(number)):
            break
    assert number == 5


def test_tenants_are_served_by_tokens_not_by_requests() -> None:
    """One tenant's rows compute 30 tokens each, the other's 10: it gets one row for three."""
    queue = Queue()
    for handle in range(40):
        queue.add(handle, tenant="large")
        queue.add(100 + handle, tenant="small")
    served: Counter[str] = Counter()
    for _ in range(40):
        row = next(queue.rows.order(0.0))
        tenant = row.origin.request.tenant
        queue.rows.admit(row, 0.0)
        row.move(RowState.RUNNING)
        queue.rows.charge(row, 30 if tenant == "large" else 10)
        served[tenant] += 1
    assert served == {"large": 10, "small": 30}


def test_a_pause_saves_nothing_up() -> None:
    queue = Queue()
    for handle in range(20):
        queue.add(handle, tenant="busy")
    queue.admit(10, tokens=100)
    for handle in (50, 51, 52):
        queue.add(handle, tenant="late")
    assert queue.admit(4, tokens=100) == [10, 50, 11, 51]  # level, not a thousand tokens ahead


def test_an_empty_queue_keeps_the_level() -> None:
    queue = Queue()
    queue.add(1, tenant="busy")
    queue.admit(1, tokens=1000)
    queue.add(2, tenant="late")
    queue.add(3, tenant="late")
    queue.admit(1)
    queue.add(4, tenant="busy")
    assert queue.admit(2, tokens=10) == [3, 4]


def test_every_fourth_admission_is_the_longest_waiting_rows() -> None:
    queue = Queue(patience_s=10.0)
    old = [queue.add(handle, priority=1, now=float(handle)) for handle in range(3)]
    for handle in range(100, 120):
        queue.add(handle, priority=0, now=5.0)
    assert queue.admit(2 * AGED_TURN, now=11.9) == [100, 101, 102, 0, 103, 104, 105, 1]
    assert [row.priority for row in old] == [0, 0, 1]
    assert queue.admit(AGED_TURN, now=11.9) == [106, 107, 108, 109]  # row 2 has only waited for 9.9 s


def test_a_row_passed_over_in_its_own_lane_has_rarer_turns() -> None:
    queue = Queue(patience_s=10.0, own_turn=8)
    old = [queue.add(handle) for handle in range(3)]
    for handle in range(100, 120):
        queue.add(handle, deadline_ms=1, now=5.0)
    admitted = queue.admit(16, now=11.0)
    assert [admitted.index(row.handle) for row in old[:2]] == [6, 14]
    assert [row.priority for row in old] == [1, 1, 1]


@pytest.mark.parametrize("own_turn", [1, 4, 5, 16, 18])
def test_lower_lanes_never_take_the_turn_of_a_passed_over_row(own_turn: int) -> None:
    queue = Queue(patience_s=10.0, own_turn=own_turn)
    for handle in range(100):
        queue.add(handle, priority=1)
    passed_over = queue.add(100, priority=0, now=5.0)
    for handle in range(101, 200):
        queue.add(handle, priority=0, deadline_ms=1, now=10.0)
    assert passed_over.handle in queue.admit(20, now=15.0)


def test_a_preempted_row_is_promoted_after_patience() -> None:
    """A row that is displaced again and again counts as interactive once it waited long enough."""
    queue = Queue(patience_s=10.0)
    row = queue.add(1, priority=1)
    priorities = []
    for _ in range(AGED_TURN + 1):
        assert queue.admit(1, now=3.0) == [1]  # no other row waits
        priorities.append(row.priority)
        row.preemptions += 1
        row.move(RowState.PREEMPTED)
        row.move(RowState.WAITING)
        queue.rows.add(row, 0.0)
    assert priorities == [1] * AGED_TURN + [0]


def test_waits_add_up() -> None:
    queue = Queue(patience_s=10.0)
    row = queue.add(1, priority=1, now=0.0)
    assert queue.admit(1, now=6.0) == [1]
    assert row.priority == 1
    row.move(RowState.PREEMPTED)
    row.move(RowState.WAITING)
    queue.rows.add(row, 100.0)
    for handle in range(10, 20):
        queue.add(handle, priority=0, now=100.0)
    assert queue.admit(3, now=105.0) == [10, 11, 1]  # 6 s and 5 s
    assert row.priority == 0


def test_outrank() -> None:
    queue = Queue()
    running = np.array([1, 0], np.int64)
    assert not queue.rows.outrank(running)
    queue.add(1, priority=1)
    assert not queue.rows.outrank(running)
    queue.add(2, priority=0)
    assert queue.rows.outrank(running)
    assert not queue.rows.outrank(running[1:])
    assert not queue.rows.outrank(running[:0])


def test_counters_of_tenants_that_are_gone_do_not_pile_up() -> None:
    queue = Queue()
    for number in range(MAX_TENANTS + 100):
        row = queue.add(number, tenant=f"tenant {number}")
        assert queue.admit(1, tokens=1) == [number]
        assert not queue.rows
        queue.rows.charge(row, 1)  # also for one whose counter is forgotten
    assert len(queue.rows._served) <= MAX_TENANTS + 1


def test_only_a_row_admitted_by_age_keeps_the_higher_lane() -> None:
    queue = Queue(patience_s=10.0)
    old = queue.add(0, priority=1)
    for handle in range(1, 1 + AGED_TURN):
        queue.add(handle, priority=0, now=20.0)
    young = queue.add(9, priority=1, now=20.0)
    assert queue.admit(2 + AGED_TURN, now=20.0) == [1, 2, 3, 0, 4, 9]
    assert (old.priority, young.priority) == (0, 1)
