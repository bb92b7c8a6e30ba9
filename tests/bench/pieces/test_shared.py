"""The steps whose attention is measured are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest
from ops.bench.pieces.shared import BLOCK, CASES, Case, alone, blocks_in, plan_of
from support.engine.counting import check_shapes


@pytest.mark.parametrize("case", [*CASES, Case(3, 2, 32, 1), Case(1, 2, 16, 17)])
def test_a_plan_with_true_prefix_groups(case: Case) -> None:
    plan = plan_of(case)
    check_shapes(plan, BLOCK)
    shared, own = case.blocks
    assert len(plan.prefix_group_lens) == case.prefix_groups
    assert plan.decodes == case.prefix_groups * case.rows
    assert len(np.unique(plan.block_tables[0])) == case.prefix_groups * shared + plan.decodes * own
    assert blocks_in(plan) == len(np.unique(plan.block_tables[0])) + 1


def test_alone_it_is_the_same_step_without_prefix_groups() -> None:
    plan = alone(plan_of(CASES[0]))
    check_shapes(plan, BLOCK)
    assert len(plan.prefix_group_segments) == 0
