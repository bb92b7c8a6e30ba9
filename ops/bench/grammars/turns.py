"""Requests of an engine of this process, run to their end: how long its steps took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.outputs import Refused
from millstream_worker.engine.protocol.request import EngineRequest


@dataclass(frozen=True, slots=True)
class StepTime:
    seconds: float
    tokens: int  # of outputs
    rows: int  # that have neither ended nor are missing yet


@dataclass(slots=True, eq=False)
class Turn:
    steps: list[StepTime] = field(default_factory=list)
    lengths: dict[int, int] = field(default_factory=dict)  # of outputs, by handle
    reasons: dict[int, str] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)  # from a request's arrival to its compiled grammar

    def full(self, rows: int) -> list[StepTime]:
        """The steps in which so many rows decode."""
        return [step for step in self.steps if step.rows == rows]


def run(engine: Engine[Any], requests: Sequence[EngineRequest]) -> Turn:
    """All of them arrive at once. Raises ValueError if one is refused."""
    turn, inside = Turn(), 0
    for request in requests:
        if refused := engine.add(request):
            raise ValueError(refused.message)
    while not engine.idle:
        before = time.perf_counter()
        for report in engine.take_compiled():
            if isinstance(report, Refused):
                raise ValueError(report.message)
            turn.waits_s.append(report.waited_s)
        if (step := engine.step()) is None:
            time.sleep(0.001)
            continue
        now = time.perf_counter()
        inside += len(step.admitted)
        rows = inside if not step.admitted else 0
        turn.steps.append(StepTime(now - before, len(step.tokens), rows))
        inside -= len(step.finished)
        for handle in step.handles:
            turn.lengths[handle] = turn.lengths.get(handle, 0) + 1
        turn.reasons |= dict(step.finished)
    return turn
