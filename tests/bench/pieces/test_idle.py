"""What an engine wastes, over a real run of a small model."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from ops.bench.pieces import idle
from ops.bench.steps import row_waste, watched

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec


def test_the_shares_of_a_run(tiny: Path) -> None:
    options = argparse.Namespace(
        workload="a", scale=0.1, rows=4, device="cpu", threads=1, compile_model="off"
    )
    row = idle.measure(str(tiny), options)
    shares = [float(row[name]) for name in ("forward %", "inputs and draw %", "plan, settle, frames %")]
    assert sum(shares) == pytest.approx(100)
    assert min(shares) > 0
    assert row["rows"] == 3
    assert 0 < float(row["unused tokens per row"]) <= float(row["most"]) < idle.BLOCK
    assert 0 < float(row["% of the pool"]) < 100


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
    waste.note([3, 15])
    waste.note([6])
    waste.note([])
    row = waste.row(pool_tokens=100)
    assert (row["unused tokens per row"], row["most"]) == (8.0, 15)
    assert row["% of the pool"] == pytest.approx(100 * 24 / 3 / 100)
