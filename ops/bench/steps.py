"""An engine of this process under observation: when it computes the model, and when it does anything else."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from ops.bench.device_clock import DeviceClock, TimedRunner, clock_of
from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan, Sampled, TokenMasks
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.runner.forward import Forward


@dataclass(slots=True, eq=False)
class Watch:
    """Stands where the runner stands, and asks it. Seconds on the host, summed up over the steps since
    `restart`: on a device that works on by itself they are no device time."""

    runner: Any
    clock: DeviceClock | None = None  # the device's, if it has one
    forward_s: float = 0.0  # inputs and logits
    launch_s: float = 0.0  # forward, and the sampling behind it
    settle_s: float = 0.0
    steps: int = 0
    computed: int = 0  # tokens
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.runner.model = _TimedForward(self.runner.model, self)
        if self.clock is not None:
            self.runner = TimedRunner(self.runner, self.clock)

    def forward(self, plan: Plan) -> Any:
        before = time.perf_counter()
        launched = self.runner.forward(plan)
        self.launch_s += time.perf_counter() - before
        self.steps += 1
        self.computed += plan.token_count
        return launched

    def sample(self, launched: Any, masks: TokenMasks | None = None) -> None:
        before = time.perf_counter()
        self.runner.sample(launched, masks)
        self.launch_s += time.perf_counter() - before

    def settle(self, launched: Any) -> Sampled:
        before = time.perf_counter()
        drawn: Sampled = self.runner.settle(launched)
        self.settle_s += time.perf_counter() - before
        return drawn

    def restart(self) -> None:
        self.forward_s = self.launch_s = self.settle_s = 0.0
        self.steps = self.computed = 0
        if self.clock is not None:
            self.clock.reset()
        self.started = time.perf_counter()

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self.started

    @property
    def device_idle(self) -> float | None:
        """The share of its time in which the device computed nothing; None where it has no clock."""
        return None if self.clock is None else self.clock.times.idle_share


class _TimedForward:
    """Adds the seconds of a form of `Forward` to a watch's."""

    def __init__(self, forward: Forward, watch: Watch) -> None:
        self._forward = forward
        self._watch = watch

    def run(self, plan: Plan) -> Tensor:
        before = time.perf_counter()
        logits = self._forward.run(plan)
        self._watch.forward_s += time.perf_counter() - before
        return logits


def watched(config: EngineConfig) -> tuple[Engine[Any], EngineInfo, Watch]:
    """An engine built as its own process builds it, with a watch around its runner."""
    from millstream_worker.engine.assembly import build

    engine, info = build(config, lambda message: None)
    watch = Watch(engine.runner, clock_of(torch.device(info.device)))
    engine.runner = watch
    return engine, info, watch


def row_waste(scheduler: Scheduler) -> list[int]:
    """For each running row the tokens that its blocks could hold and do not."""
    batch = scheduler._batch
    return [
        len(row.blocks) * batch.block_size - int(batch.scheduled[row.slot])
        for row in batch.rows
        if row is not None and row.lives
    ]
