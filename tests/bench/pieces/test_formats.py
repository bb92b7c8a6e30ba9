"""Steps by the format of weights, and of keys and values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ops.bench.pieces import context, weights

from millstream_worker.engine import assembly
from millstream_worker.engine.protocol.config import EngineConfig

Build = Callable[[EngineConfig, Callable[[str], None]], Any]


@pytest.fixture
def built() -> tuple[list[Any], Build]:
    """Engines and what they are, as they are built, and what builds them: without a compiler."""
    found: list[Any] = []

    def build(config: EngineConfig, report: Callable[[str], None]) -> Any:
        found.append(assembly.build(replace(config, compile_model="off"), report))
        return found[-1]

    return found, build


def test_weights_are_timed_in_each_format(tiny: Path, built: tuple[list[Any], Build]) -> None:
    engines, build = built
    options = argparse.Namespace(weights=["auto", "int8"], rows=[3, 1], prefill=40, turns=1, threads=1)
    plain, coded = weights.measure(str(tiny), options, build)
    assert [info.weights for _, info in engines] == [
        re.sub(r" \(.*", "", str(row["weights"])) for row in (plain, coded)
    ]
    assert str(coded["weights"]).startswith("int8")
    assert list(plain)[3:] == ["prefill of 40 ms", "1 rows ms", "3 rows ms"]
    for column in list(plain)[3:]:
        assert str(plain[column]).endswith("(1.00x)")
        first, second = (float(str(row[column]).split()[0].replace(",", "")) for row in (plain, coded))
        ratio = float(str(coded[column]).split("(")[1].rstrip("x)"))
        assert ratio == pytest.approx(first / second, rel=0.6, abs=0.02), (
            "rounded to a tenth of a millisecond"
        )


def test_rows_have_their_context_without_its_being_computed(
    tiny: Path, built: tuple[list[Any], Build], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines, build = built
    ends: list[int] = []
    timed = context.step_s

    def step_s(engine: Any) -> float:
        taken = timed(engine)
        ends.append(int(engine.report().stats.blocks_used))
        return taken

    monkeypatch.setattr(context, "step_s", step_s)
    options = argparse.Namespace(rows=3, tokens=60, steps=1, turns=2, threads=1)
    rows = context.measure(str(tiny), options, build)
    assert [row["keys and values"] for row in rows] == [engines[0][1].kv_format, "int8"]
    assert len(engines) == 4
    assert len(ends) == 4 * context.TURN
    assert min(ends) >= 3 * 60 // 16
    for engine, info in engines:
        storage = engine.runner.model.storage
        assert (storage.keys[0].dtype == torch.int8) == (info.kv_format == "int8")
        assert storage.keys[0][1:].any(), "random numbers, not what the engine began with"
