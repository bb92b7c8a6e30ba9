"""The arrays of a plan, number by number; at the end, of those that are made without a scheduler."""

from __future__ import annotations

import numpy as np
from support.engine.brain import ask, rig_of

from millstream_worker.engine.brain.batch.noise import row_key, uniform
from millstream_worker.engine.brain.batch.plan import RowLoad, packed_plan
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


def test_unused_places_of_block_tables_are_zero_also_after_longer_rows() -> None:
    rig = rig_of(ask(1, 20, max_tokens=1), ask(2, 20, max_tokens=1), max_rows=2)
    rig.run()
    rig.add(ask(3, 20), ask(4, 3))
    rig.step()
    (table,) = rig.plans[-1].block_tables
    assert table.shape == (2, 5)
    assert table[1, 1:].tolist() == [0, 0, 0, 0]


def test_one_step_ahead_the_token_comes_from_the_device() -> None:
    rig = rig_of(ask(1, [11, 12, 13], max_tokens=3), pipeline_depth=1)
    rig.run()
    prefill, first, second = rig.plans
    assert (prefill.from_device.any(), prefill.decodes) == (False, 0)
    for plan, position in ((first, 3), (second, 4)):
        assert plan.from_device.tolist() == [True]
        assert plan.positions.tolist() == [position]
        assert plan.output_indices.tolist() == [position - 2]


def test_a_row_that_comes_back_is_loaded_with_its_output() -> None:
    rig = rig_of(ask(1, [11, 12, 13], max_tokens=6, outputs=((14, 15),)))
    rig.run()
    assert rig.plans[0].loads == (RowLoad(0, SamplingSpec(), (11, 12, 13), (14, 15)),)
    assert rig.plans[0].output_indices.tolist() == [2]
    assert rig.output[1] == [16, 17, 18, 19]


def test_noise_is_drawn_where_a_token_depends_on_it() -> None:
    rig = rig_of(ask(1, [11, 12], seed=7, temperature=0.0, max_tokens=8))
    rig.steps(2)
    assert [plan.noise.tolist() for plan in rig.plans] == [[0.0], [0.0]]
    rig.add(ask(2, [21, 22], seed=8, max_tokens=2))
    rig.steps(3)
    keys = np.array([row_key(7, 0), row_key(8, 0)], np.uint64)
    drawn = (uniform(keys, np.array(indices, np.int32)).tolist() for indices in ([2, 0], [3, 1]))
    assert [plan.noise.tolist() for plan in rig.plans[2:]] == [*drawn, [0.0]]


def test_decoding_slots_are_the_same_array_while_they_are_the_same() -> None:
    rig = rig_of(ask(1, 4, max_tokens=8), ask(2, 4, max_tokens=4))
    batch, seen = rig.scheduler._batch, []
    for _ in range(7):
        rig.step()
        seen.append(batch.decodes())
    assert [slots.tolist() for slots in seen] == [[0, 1]] * 3 + [[0]] * 4
    assert len({id(slots) for slots in seen}) == 2


def test_segments_stand_side_by_side_with_their_places() -> None:
    plan = packed_plan(
        [1, 1, 4, 2], [9, 1, 4, 6], [[3, 1, 7], [2, 0, 0], [5, 0, 0], [4, 6, 0]], 4, samples=True
    )
    assert (plan.decodes, plan.token_count) == (2, 8)
    assert plan.query_starts.tolist() == [0, 1, 2, 6, 8]
    assert plan.positions.tolist() == [8, 0, 0, 1, 2, 3, 4, 5]
    assert plan.slot_mapping[0].tolist() == [28, 8, 20, 21, 22, 23, 24, 25]
    assert (plan.logit_indices.tolist(), plan.logit_segments.tolist()) == ([0, 1, 5, 7], [0, 1, 2, 3])


def test_only_segments_before_the_first_chunk_decode() -> None:
    plan = packed_plan([1, 2, 1], [1, 2, 1], [[0], [1], [2]], 4)
    assert plan.decodes == 1
    assert len(plan.logit_indices) == len(plan.noise) == 0
