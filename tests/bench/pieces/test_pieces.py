"""Smaller parts of the benchmark: plans that are measured, and what an engine's rows waste."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ops.bench.pieces import brain, idle
from ops.bench.pieces.shared import BLOCK, CASES, Case, alone, blocks_in, plan_of
from ops.bench.steps import row_waste, watched
from support.engine.counting import check_shapes

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec


def test_a_plan_is_all_its_arrays() -> None:
    stepper = brain.Stepper(0, max_step_tokens=64)
    stepper.add(20, 4)
    prefill, decode = stepper.step(), stepper.step()
    assert decode.ms > 0
    # Of 19 tokens more: id, position, whether it comes from the device (one byte), and place (eight).
    assert prefill.array_bytes - decode.array_bytes == pytest.approx(19 * (4 + 4 + 1 + 8), abs=64)


@pytest.mark.parametrize("case", [*CASES, Case(3, 2, 32, 1), Case(1, 2, 16, 17)])
def test_a_plan_has_true_prefix_groups_and_alone_none(case: Case) -> None:
    plan = plan_of(case)
    check_shapes(plan, BLOCK)
    shared, own = case.blocks
    assert len(plan.prefix_group_lens) == case.prefix_groups
    assert plan.decodes == case.prefix_groups * case.rows
    assert len(np.unique(plan.block_tables[0])) == case.prefix_groups * shared + plan.decodes * own
    assert blocks_in(plan) == len(np.unique(plan.block_tables[0])) + 1
    check_shapes(alone(plan), BLOCK)
    assert len(alone(plan).prefix_group_segments) == 0


def test_what_a_row_wastes_is_what_its_last_block_lacks(tiny: Path) -> None:
    sizes = {"kv_memory": "1MiB", "block_size": 16, "max_rows": 4}
    config = EngineConfig(str(tiny), device="cpu", threads=1, compile_model="off", **sizes)
    engine, _, watch = watched(config)
    for handle, prompt in enumerate((range(3, 19), range(40, 60))):
        engine.add(EngineRequest(handle, tuple(prompt), 5, SamplingSpec(temperature=0.0)))
    engine.step()
    assert sorted(row_waste(engine.scheduler)) == [0, 12]
    engine.step()
    assert sorted(row_waste(engine.scheduler)) == [11, 15]
    assert (watch.steps, watch.computed) == (2, 38)
    watch.restart()
    assert (watch.steps, watch.computed, watch.forward_s) == (0, 0, 0.0)


def test_waste_is_summed_up_over_steps() -> None:
    waste = idle.Waste()
    for tokens in ([3, 15], [6], []):
        waste.note(tokens)
    row = waste.row(pool_tokens=100)
    assert (row["unused tokens per row"], row["most"]) == (8.0, 15)
    assert row["% of the pool"] == pytest.approx(100 * 24 / 3 / 100)
