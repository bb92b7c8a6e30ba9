"""Too few blocks or slots: who gives way, that nothing is lost by it, and that nothing starves."""

from __future__ import annotations

from collections import Counter

import pytest
from support.engine.brain import ask, rig_of
from support.engine.counting import Rig


def steps_until(rig: Rig, handle: int, most: int = 200) -> int:
    for step in range(most):
        if handle in rig.finished:
            return step
        rig.step()
    raise AssertionError(f"{handle} has not ended after {most} steps")


def loads(rig: Rig) -> Counter[int]:
    """How often each row entered the batch; `ask` makes prompts by handle."""
    return Counter(load.prompt[0] // 1000 for plan in rig.plans for load in plan.loads)


def test_a_preempted_row_gives_the_same_tokens(depth: int) -> None:
    """Each row grows to 11 blocks; the pool has 16. Who came last gives way, and only when it must."""
    rig = rig_of(blocks=16, pipeline_depth=depth)
    rig.run(ask(1, 8, max_tokens=36), ask(2, 8, max_tokens=36), ask(3, 8, max_tokens=36))
    assert [len(rig.output[handle]) for handle in (1, 2, 3)] == [36, 36, 36]
    assert list(rig.finished) == [1, 2, 3]
    assert loads(rig) == {1: 1, 2: 2, 3: 3}


def test_batch_gives_way_before_interactive_whoever_came_first(depth: int) -> None:
    rig = rig_of(blocks=12, pipeline_depth=depth)
    rig.run(ask(1, 8, priority=1, max_tokens=25), ask(2, 8, priority=0, max_tokens=25))
    assert loads(rig) == {1: 2, 2: 1}
    assert list(rig.finished) == [2, 1]


def test_a_preempted_row_finds_most_of_its_blocks_again() -> None:
    rig = rig_of(ask(1, 24, max_tokens=12), ask(2, 24, max_tokens=16), blocks=16)
    rig.run()
    stats = rig.scheduler.stats()
    assert stats.preemptions_total == 1
    assert (stats.prefix_queried_total, stats.prefix_hit_total) == (48, 0)  # a second entry is no news
    assert stats.prompt_computed_total <= 48 + 12  # the tail of it was overwritten by the row that went on


def test_a_row_that_was_running_comes_back_before_new_ones() -> None:
    rig = rig_of(ask(1, 24, max_tokens=12), ask(2, 24, max_tokens=16), blocks=16)
    while not rig.scheduler.stats().preemptions_total:
        rig.step()
    rig.run(ask(3, 4, deadline_ms=1))
    assert [handle for handle, _ in rig.admitted] == [2, 1, 3]


def test_interactive_takes_a_slot_from_batch(depth: int) -> None:
    rig = rig_of(ask(1, 4, max_tokens=40), ask(2, 4, max_tokens=40), max_rows=2, pipeline_depth=depth)
    rig.step()
    rig.add(ask(3, 4, priority=0, max_tokens=3))
    assert steps_until(rig, 3) <= 4 + 2 * depth
    assert rig.scheduler.stats().preemptions_total == 1
    rig.run()
    assert list(rig.finished) == [3, 1, 2]


def test_interactive_takes_blocks_from_several_batch_rows(depth: int) -> None:
    rig = rig_of(*(ask(handle, 12, max_tokens=30) for handle in range(1, 5)), blocks=20, pipeline_depth=depth)
    rig.step()
    rig.add(ask(9, 36, priority=0, max_tokens=3))
    assert steps_until(rig, 9) <= 4 + 2 * depth
    assert rig.scheduler.stats().preemptions_total == 2
    rig.run()


def test_a_newcomer_leaves_running_rows_a_block_each() -> None:
    """Seven blocks are free and the newcomer needs seven; the running row will soon need one of them."""
    rig = rig_of(ask(1, 8, max_tokens=8), blocks=10)
    rig.steps(2)
    rig.run(ask(2, 28))
    assert rig.scheduler.stats().preemptions_total == 0


def test_nobody_gives_way_in_vain() -> None:
    """An interactive row needs more blocks than the batch rows hold: interactive ones hold the rest."""
    rig = rig_of(ask(1, 48, priority=0, max_tokens=10), ask(2, 8, max_tokens=4), blocks=20)
    rig.step()
    rig.add(ask(3, 40, priority=0))
    rig.step()
    assert rig.scheduler.stats().preemptions_total == 0
    rig.run()


@pytest.mark.parametrize("own", [{"priority": 0}, {"alone": True}], ids=str)
def test_interactive_preempts_no_equal_row_and_no_isolated_row(
    own: dict[str, int],
) -> None:
    rig = rig_of(ask(1, 4, max_tokens=20, **own), max_rows=1)
    rig.step()
    rig.run(ask(2, 4, priority=0))
    assert list(rig.finished) == [1, 2]
    assert rig.scheduler.stats().preemptions_total == 0


def test_a_large_row_is_not_kept_out_by_small_ones() -> None:
    """A row of half the pool waits while small ones flow through; those behind it wait for it."""
    rig = rig_of(*(ask(handle, 8, max_tokens=8) for handle in range(4)), blocks=20, max_rows=8)
    rig.step()
    rig.add(ask(50, 64, max_tokens=8))
    for handle in range(100, 130):
        rig.add(ask(handle, 4, max_tokens=8))
        rig.step()
    rig.run()
    order = [handle for handle, _ in rig.admitted]
    assert order.index(50) == 4


DOCUMENT = tuple(range(500, 532))  # eight blocks of four


def first_victim(rig: Rig) -> set[int]:
    """Who stands still once a row was thrown out."""
    while not rig.scheduler.stats().preemptions_total:
        rig.step()
    rig.step()
    settled = rig.step()
    assert settled is not None
    return rig.expected.keys() - set(settled.handles) - rig.finished.keys()


def test_who_loses_least_gives_way_not_who_came_last(depth: int) -> None:
    """The last one has 32 tokens to lose, the one before it a few: the rest it shares with the first."""
    rig = rig_of(ask(1, (*DOCUMENT, 1), max_tokens=24), blocks=25, pipeline_depth=depth)
    rig.step()
    rig.add(ask(2, (*DOCUMENT, 2), max_tokens=24))
    rig.step()
    rig.add(ask(3, 32, max_tokens=24))
    assert first_victim(rig) == {2}
    rig.run()


def test_the_first_of_the_lane_never_gives_way(depth: int) -> None:
    """It has least to lose; but if it could be thrown out, nobody would be sure to get to the end."""
    rig = rig_of(blocks=24, pipeline_depth=depth)
    rig.run(ask(1, 2, max_tokens=40), ask(2, 30, max_tokens=40), ask(3, 30, max_tokens=40))
    assert rig.scheduler.stats().preemptions_total > 0
    assert loads(rig)[1] == 1


def test_a_row_that_gives_too_little_keeps_it() -> None:
    """An interactive row needs ten blocks: of rows with two and with twelve the larger one goes, alone."""
    rig = rig_of(ask(1, 44, max_tokens=20), ask(2, 6, max_tokens=20), ask(3, 6, max_tokens=20), blocks=24)
    rig.step()
    rig.add(ask(9, 36, priority=0, max_tokens=9))
    assert first_victim(rig) == {1}
    rig.run()


def test_a_chunk_waits_for_blocks_that_others_open() -> None:
    """While a launch in flight will free enough, decode rows take those that are free; it gets the rest: one
    token where three would fit the step."""
    lens = {1: (22, 10), 2: (20, 7), 3: (17, 9), 4: (4, 10)}
    asked = [ask(handle, prompt, max_tokens=tokens) for handle, (prompt, tokens) in lens.items()]
    rig = rig_of(*asked, blocks=14, max_step_tokens=4, pipeline_depth=1)
    rig.run()
    assert [plan.query_lens.tolist() for plan in rig.plans[12:15]] == [[1, 1], [1, 3], [1, 2]]


def test_it_is_not_always_the_same_row(depth: int) -> None:
    """Short interactive rows need a place again and again; the batch rows take turns in giving theirs."""
    rig = rig_of(max_rows=4, pipeline_depth=depth, context_length=400, blocks=400)
    rig.add(*(ask(handle, 8 + handle, max_tokens=200) for handle in range(1, 5)))
    for round_ in range(12):
        rig.add(ask(100 + round_, 4, priority=0, max_tokens=2))
        for _ in range(8):
            rig.step()
    rig.run()
    counts = loads(rig)
    entries = [counts[handle] for handle in range(1, 5)]
    assert sum(entries) >= 4 + 10
    assert max(entries) - min(entries) <= 2


@pytest.mark.parametrize("sizes", [{"max_rows": 1}, {"max_rows": 3, "blocks": 12}])
def test_batch_rows_finish_beside_endless_interactive_ones(depth: int, sizes: dict[str, int]) -> None:
    rig = rig_of(pipeline_depth=depth, patience_s=10.0, **sizes)
    rig.add(*(ask(handle, 8, max_tokens=12) for handle in range(3)))
    for step in range(220):
        if step % 2 == 0:
            rig.add(ask(100 + step, 6, priority=0, max_tokens=3))
        rig.step()
        if set(range(3)) <= rig.finished.keys():
            break
    assert set(range(3)) <= rig.finished.keys()
    rig.run()


@pytest.mark.parametrize("before", range(4))
def test_a_row_preempted_again_near_its_end_finishes(depth: int, before: int) -> None:
    """An interactive row that takes the whole pool comes every 28 steps, and nothing else waits by then."""
    rig = rig_of(pipeline_depth=depth, blocks=48, context_length=192, max_step_tokens=8, patience_s=10.0)
    for handle in range(2, 2 + before):
        rig.add(ask(handle, 3, max_tokens=1))
    rig.run()
    rig.add(ask(1, 160, max_tokens=10))
    for step in range(28 * 8):
        if step % 28 == 27:
            rig.add(ask(100 + step, 186, priority=0, max_tokens=3))
        rig.step()
    assert 1 in rig.finished
    rig.run()
