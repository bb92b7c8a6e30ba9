"""Smaller parts of the benchmark: steps that are measured, and starts."""

from __future__ import annotations

import numpy as np
import pytest
from ops.bench.pieces import brain
from ops.bench.pieces.shared import BLOCK, CASES, Case, alone, blocks_in, plan_of
from ops.bench.pieces.startup import engine
from support.engine.counting import check_shapes
from support.workers.fake_engine import COMMAND

from millstream_worker.engine.protocol.config import EngineConfig


def test_a_plan_is_all_its_arrays() -> None:
    stepper = brain.Stepper(0, max_step_tokens=64)
    stepper.add(20, 4)
    prefill, decode = stepper.step(), stepper.step()
    assert decode.ms > 0
    # Of 19 tokens more: id, position, whether it comes from the device (one byte), and place (eight).
    assert prefill.array_bytes - decode.array_bytes == pytest.approx(19 * (4 + 4 + 1 + 8), abs=64)


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


async def test_an_engine_is_timed_until_it_is_ready() -> None:
    start = await engine(EngineConfig("counting:load_s=0.2"), COMMAND.split())

    assert start.seconds >= 0.2
    assert start.cpu_s > 0
