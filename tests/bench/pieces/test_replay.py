"""Steps whose calls Python makes, beside replayed ones."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ops.bench.machine import Limits
from ops.bench.pieces import replay

from millstream_worker.engine import assembly
from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.replay import cpu_replay


class Recorded:
    """Has steps computed as before, and counts them."""

    def __init__(self) -> None:
        self.eager: Any = None
        self.steps = 0
        self._seen: Counter[int] = Counter()
        self._steps: set[tuple[str, tuple[int, int]]] = set()

    def run(self, plan: Plan) -> Any:
        self.steps += 1
        if plan.decodes == plan.token_count:
            self._seen[plan.decodes] += 1
            if self._seen[plan.decodes] > cpu_replay._PASSED:
                self._steps.add((plan.head, (plan.decodes, plan.decodes)))
        return self.eager.run(plan)


def test_turns_are_taken_in_one_engine(tiny: Path) -> None:
    recorded = Recorded()

    def build(config: Any, report: Any) -> Any:
        engine, info = assembly.build(replace(config, compile_model="off"), report)
        recorded.eager = engine.runner.model  # type: ignore[attr-defined]
        engine.runner.model = recorded  # type: ignore[attr-defined]
        return engine, info

    options = argparse.Namespace(turns=2, threads=1)
    row = replay.measure(str(tiny), 3, options, Limits(1e10, 1e11), build)
    assert row["rows"] == 3
    assert float(row["least ms"]) < min(float(row["called ms"]), float(row["replayed ms"]))
    assert float(row["ratio"]) == pytest.approx(float(row["called ms"]) / float(row["replayed ms"]))
    before = recorded.steps - 2 * replay.TURN  # of its two turns
    assert replay.TURN < before <= replay.TURN + 4
