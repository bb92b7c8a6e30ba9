"""Where a step's token ids come from."""

from __future__ import annotations

import torch
from support.engine.planning import Segment, pack

from millstream_worker.engine.runner.forward import sampled_in, token_ids


def test_ids_come_from_the_plan_or_from_the_slot_that_drew_them() -> None:
    plan = pack(
        [
            Segment(3, [0], 4, [0, 1], from_device=True),
            Segment(1, [70, 71], 0, [2]),
            Segment(2, [9], 2, [3]),
            Segment(0, [0], 8, [4, 5, 6], from_device=True),
        ],
        4,
    )
    sources = sampled_in(plan)
    assert sources.tolist() == [3, -1, 0, -1, -1]

    ids = token_ids(torch.from_numpy(plan.tokens).long(), torch.from_numpy(sources), torch.arange(50, 54))
    assert ids.tolist() == [53, 9, 50, 70, 71]


def test_a_step_that_the_host_knows_has_no_sources() -> None:
    plan = pack([Segment(1, [70, 71], 0, [2])], 4)
    assert sampled_in(plan).tolist() == [-1, -1]
