"""Steps cut into pieces: every query sees each of its keys once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.engine.planning import Segment, pack, random_plan, sharing

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.native.work_items import PART_KEYS, cut
from millstream_worker.engine.runner.kv.layer_spec import LayerSpec


def with_prefix_groups(plan: Plan) -> Plan:
    """Give pairs of its decoding segments the same first blocks, as far as both have them."""
    found = []
    for pair in range(plan.decodes // 3):
        members = [pair, plan.decodes - 1 - pair]
        blocks = min((plan.kv_lens[member] - 1) // 16 for member in members)
        if blocks:
            plan.block_tables[0][members[1], :blocks] = plan.block_tables[0][members[0], :blocks]
            found.append((blocks * 16, members))
    return sharing(plan, found)


@pytest.mark.parametrize("prefix_groups", [False, True])
@pytest.mark.parametrize("window", [None, 1, 100, 700])
def test_each_key_once(window: int | None, prefix_groups: bool) -> None:
    for seed, group in product(range(8), (1, 3, 71)):
        plan = random_plan(seed, rows=1 + seed * 2)
        if prefix_groups:
            plan = with_prefix_groups(plan)
        found = cut(plan, LayerSpec(2 * group, 2, 64, 64, scale=1.0, window=window))
        seen: dict[int, list[int]] = {token: [] for token in range(plan.token_count)}
        places: dict[int, list[int]] = {token: [] for token in range(plan.token_count)}
        for segment, first, tokens, first_key, end_key, part in found.pieces:
            for token in found.members[first : first + tokens]:
                owner = np.searchsorted(plan.query_starts, token, "right") - 1
                blocks = slice(first_key // 16, -(-end_key // 16))
                assert (plan.block_tables[0][owner][blocks] == plan.block_tables[0][segment][blocks]).all()
                low = 0 if window is None else max(0, plan.positions[token] - window + 1)
                seen[token] += range(max(first_key, low), min(end_key, plan.positions[token] + 1))
                places[token].append(part)
        for token, keys in seen.items():
            low = 0 if window is None else max(0, plan.positions[token] - window + 1)
            assert sorted(keys) == list(range(low, plan.positions[token] + 1))
        joined = {token: (first, parts) for token, first, parts in found.splits.tolist()}
        taken: list[int] = []
        for token, parts in places.items():
            first, count = joined.get(token, (0, 0))
            assert sorted(parts) == (list(range(count)) if count else [-1])
            assert found.first_parts[token] == first
            taken += range(first, first + count)
        assert sorted(taken) == list(range(found.parts))


def test_the_dearest_come_first() -> None:
    plan = pack(
        [Segment(0, [0], 40, range(3)), Segment(1, [0] * 64, 0, range(4)), Segment(2, [0], 400, range(26))],
        16,
    )
    found = cut(plan, LayerSpec(2, 1, 64, 64, scale=1.0)).pieces
    costs = (found[:, 4] - found[:, 3]) * (8 + 2 * found[:, 2])
    assert (np.diff(costs) <= 0).all()


def test_a_row_is_cut_by_its_own_length_alone() -> None:
    layer = LayerSpec(2, 1, 64, 64, scale=1.0)
    row = Segment(0, [0], 5 * PART_KEYS, range(161))
    others = [Segment(slot, [0], 3000, range(188)) for slot in range(1, 9)]
    alone, among = (cut(pack(segments, 16), layer).pieces for segments in ([row], [row, *others]))
    assert len(alone) == 6
    assert sorted(among[among[:, 0] == 0, 3:5].tolist()) == sorted(alone[:, 3:5].tolist())
