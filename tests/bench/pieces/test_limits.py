"""The limits beside figures of parts that run no model."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.machine import Limits
from ops.bench.pieces import brain
from ops.bench.pieces.front import cores_limit
from ops.bench.pieces.startup import limit


def test_cores_that_do_nothing_else() -> None:
    assert cores_limit(100, [3.0, 1.0], cores=2) == 50.0  # four seconds of work for two cores


def test_weights_are_read_once(tmp_path: Path) -> None:
    for name, size in (("model-1.safetensors", 1_500_000), ("model-2.safetensors", 500_000), ("x.json", 99)):
        (tmp_path / name).write_bytes(bytes(size))
    assert limit(tmp_path, Limits(1e6, 1.0)).startswith("  2.00 ")


def test_a_plan_is_all_its_arrays() -> None:
    stepper = brain.Stepper(0, max_step_tokens=64)
    stepper.add(20, 4)
    prefill, decode = stepper.step(), stepper.step()
    assert decode.ms > 0
    # Of 19 tokens more: id, position, whether it comes from the device (one byte), and place (eight).
    assert prefill.array_bytes - decode.array_bytes == pytest.approx(19 * (4 + 4 + 1 + 8), abs=64)


def test_the_tables_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    brain.show("decode", [brain.Step(1.0, 4_000)] * 40, Limits(1e9, 1.0))
    assert "limit 0.0040 ms" in capsys.readouterr().out
