"""Steps that are made without a scheduler."""

from __future__ import annotations

from millstream_worker.engine.brain.batch.plan import packed_plan


def test_segments_stand_side_by_side_with_their_places() -> None:
    plan = packed_plan(
        [1, 1, 4, 2], [9, 1, 4, 6], [[3, 1, 7], [2, 0, 0], [5, 0, 0], [4, 6, 0]], 4, draws=True
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
