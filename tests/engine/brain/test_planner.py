"""The arrays of a plan, number by number, and its prefix groups. That these are true is checked for every
plan of every test, by the counting model."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from support.engine.brain import ask, rig_of

from millstream_worker.engine.brain.batch.noise import row_key, uniform
from millstream_worker.engine.brain.batch.plan import Plan, RowLoad
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.protocol.request import SamplingSpec


def test_a_mixed_step() -> None:
    """A row of 6 tokens decodes at position 6; beside it, 5 of another's 7 prompt tokens are computed."""
    rig = rig_of(ask(1, [11, 12, 13, 14, 15, 16], seed=7), max_step_tokens=6)
    rig.step()
    rig.add(ask(2, [21, 22, 23, 24, 25, 26, 27], seed=8))
    rig.step()
    plan = rig.plans[1]
    assert (plan.step, plan.decodes, plan.token_count) == (1, 1, 6)
    assert plan.loads == (RowLoad(1, SamplingSpec(seed=8), (21, 22, 23, 24, 25, 26, 27), ()),)
    assert plan.row_slots.tolist() == [0, 1]
    assert plan.tokens.tolist() == [17, 21, 22, 23, 24, 25]
    assert not plan.from_device.any()
    assert plan.positions.tolist() == [6, 0, 1, 2, 3, 4]
    assert plan.query_lens.tolist() == [1, 5]
    assert plan.query_starts.tolist() == [0, 1, 6]
    assert plan.kv_lens.tolist() == [7, 5]
    assert [table.tolist() for table in plan.block_tables] == [[[0, 1], [2, 3]]]
    assert [places.tolist() for places in plan.slot_mapping] == [[6, 8, 9, 10, 11, 12]]
    assert plan.logit_indices.tolist() == [0]  # the unfinished prefill draws nothing
    assert plan.logit_segments.tolist() == [0]
    assert plan.output_indices.tolist() == [1]
    key = np.array([row_key(7, 0)], np.uint64)
    assert plan.noise.tolist() == uniform(key, np.array([1], np.int32)).tolist()

    rig.step()
    plan = rig.plans[2]
    assert (plan.decodes, plan.loads) == (1, ())
    assert plan.tokens.tolist() == [18, 26, 27]
    assert plan.positions.tolist() == [7, 5, 6]
    assert plan.kv_lens.tolist() == [8, 7]
    assert plan.logit_indices.tolist() == [0, 2]
    assert plan.output_indices.tolist() == [2, 0]


def test_unused_block_table_places_are_zero_after_longer_rows() -> None:
    rig = rig_of(ask(1, 20, max_tokens=1), ask(2, 20, max_tokens=1), max_rows=2)
    rig.run()
    rig.add(ask(3, 20), ask(4, 3))
    rig.step()
    (table,) = rig.plans[-1].block_tables
    assert table.shape == (2, 5)
    assert table[1, 1:].tolist() == [0, 0, 0, 0]


def test_noise_is_drawn_where_a_token_depends_on_it() -> None:
    rig = rig_of(ask(1, [11, 12], seed=7, temperature=0.0, max_tokens=8))
    rig.steps(2)
    assert [plan.noise.tolist() for plan in rig.plans] == [[0.0], [0.0]]
    rig.add(ask(2, [21, 22], seed=8, max_tokens=2))
    rig.steps(3)
    keys = np.array([row_key(7, 0), row_key(8, 0)], np.uint64)
    drawn = (uniform(keys, np.array(indices, np.int32)).tolist() for indices in ([2, 0], [3, 1]))
    assert [plan.noise.tolist() for plan in rig.plans[2:]] == [*drawn, [0.0]]


def test_unchanged_decoding_slots_are_the_same_array() -> None:
    rig = rig_of(ask(1, 4, max_tokens=8), ask(2, 4, max_tokens=4))
    batch, seen = rig.scheduler._batch, []
    for _ in range(7):
        rig.step()
        seen.append(batch.decodes())
    assert [slots.tolist() for slots in seen] == [[0, 1]] * 3 + [[0]] * 4
    assert len({id(slots) for slots in seen}) == 2


DOCUMENT = tuple(range(500, 540))  # ten blocks of four
OTHER = tuple(range(700, 720))


def groups(plan: Plan) -> list[tuple[int, list[int]]]:
    """Tokens, and the slots that share them."""
    slots = [
        plan.row_slots[plan.prefix_group_segments[a:b]].tolist()
        for a, b in pairwise(plan.prefix_group_starts)
    ]
    return list(zip(plan.prefix_group_lens.tolist(), slots, strict=True))


def test_rows_read_together_from_their_first_decode_step_on(depth: int) -> None:
    rig = rig_of(pipeline_depth=depth)
    rig.run(*(ask(handle, (*DOCUMENT, handle, handle), max_tokens=6) for handle in range(3)), ask(3, 9))
    assert groups(rig.plans[0]) == []
    assert [groups(plan) for plan in rig.plans[1:6]] == [[(40, [0, 1, 2])]] * 5


def test_rows_join_and_leave_a_prefix_group() -> None:
    rig = rig_of(ask(0, (*DOCUMENT, 1), max_tokens=9), ask(1, (*DOCUMENT, 2), max_tokens=3))
    rig.steps(2)
    rig.run(ask(2, (*DOCUMENT, 3), max_tokens=4))
    assert [groups(plan) for plan in rig.plans[:6]] == [
        [],
        [(40, [0, 1])],
        [(40, [0, 1])],  # the newcomer prefills
        [(40, [0, 2])],  # the second has ended
        [(40, [0, 2])],
        [(40, [0, 2])],
    ]
    assert groups(rig.plans[-1]) == []


def test_a_row_in_the_place_of_another_reads_what_is_its_own() -> None:
    """The same slots decode before and after; in between one did not."""
    rig = rig_of(ask(0, (*DOCUMENT, 1), max_tokens=12), ask(1, (*DOCUMENT, 2), max_tokens=4), max_rows=2)
    rig.run(ask(2, (*OTHER, 3), max_tokens=4))
    decoding = [(plan.row_slots[: plan.decodes].tolist(), groups(plan)) for plan in rig.plans]
    together = [found for slots, found in decoding if slots == [0, 1]]
    assert together == [[(40, [0, 1])]] * 3 + [[]] * 3


def test_prefix_groups_stay_true_across_preemptions() -> None:
    rig = rig_of(blocks=24, max_rows=6)
    rig.run(*(ask(handle, (*DOCUMENT, handle), max_tokens=40) for handle in range(5)))
    assert rig.scheduler.stats().preemptions_total > 0
    sizes = [len(plan.prefix_group_segments) for plan in rig.plans]
    assert {2, 3, 4} <= set(sizes), "rows leave"
    assert any(fewer < more for fewer, more in pairwise(sizes[3:])), "and come back"


def test_what_is_not_worth_it_and_the_switch() -> None:
    for costs in (None, SharingCosts(row=16, step=4096)):
        rig = rig_of(sharing=costs)
        rig.run(*(ask(handle, (*DOCUMENT, handle)) for handle in range(4)))
        assert not any(groups(plan) for plan in rig.plans)
