"""What the brain costs per step: plan + settle with all arrays built, 256 rows, no model behind it.

    python -m ops.bench brain [--steps 2000]

Prints median and 95th percentile in milliseconds for decode steps (pipeline depth 0 and 1) and for mixed
steps, in which rows end and others join all the time; the same for rows that ask about 16 documents under one
system prompt, and what finding out who reads which beginning together adds to those, step beside step. Beside
each stands the limit: how long memory takes for the arrays that a step's plan hands on.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import fields
from itertools import count
from typing import NamedTuple

import numpy as np
from ops.bench import machine
from ops.bench.command_line import parser_of

from millstream_worker.engine.brain.batch.plan import Plan, Sampled
from millstream_worker.engine.brain.batch.shared_prefixes import SharingCosts
from millstream_worker.engine.brain.scheduler import Scheduler
from millstream_worker.engine.brain.scheduler_config import SchedulerConfig
from millstream_worker.engine.protocol.request import EngineRequest

ROWS = 256
CONTEXT = 8192


class Step(NamedTuple):
    ms: float  # spent in the scheduler
    array_bytes: int


class Stepper:
    """A scheduler with made-up samples: one step after the other, timed."""

    def __init__(self, depth: int, max_step_tokens: int, sharing: SharingCosts | None = None) -> None:
        config = SchedulerConfig(
            max_rows=ROWS,
            max_step_tokens=max_step_tokens,
            block_size=16,
            blocks=ROWS * CONTEXT // 16,  # nothing is preempted
            context_length=CONTEXT,
            prefix_cache=True,
            hash_seed=b"bench",
            pipeline_depth=depth,
            sharing=sharing,
        )
        self.scheduler = Scheduler(config)
        self._outstanding: list[Plan] = []
        self._random = np.random.default_rng(0)
        self._handles = count()

    def add(self, prompt_tokens: int, max_tokens: int, beginning: Sequence[int] = ()) -> None:
        prompt = (*beginning, *self._random.integers(0, 32_000, prompt_tokens).tolist())
        self.scheduler.add(EngineRequest(next(self._handles), prompt, max_tokens), 0.0)

    def step(self) -> Step:
        """Plan and settle once."""
        started = time.thread_time()
        plan = self.scheduler.plan(0.0)
        planned = time.thread_time()
        assert plan is not None, "nothing to compute"
        self._outstanding.append(plan)
        if len(self._outstanding) <= self.scheduler.config.pipeline_depth:
            return Step((planned - started) * 1e3, array_bytes(plan))
        oldest = self._outstanding.pop(0)
        drawn = Sampled(self._random.integers(0, 32_000, len(oldest.noise), dtype=np.int32), {})
        resumed = time.thread_time()
        self.scheduler.settle(drawn, 0.0)
        return Step((planned - started + time.thread_time() - resumed) * 1e3, array_bytes(plan))


def array_bytes(plan: Plan) -> int:
    """Bytes of the plan's arrays, without the rows' sampling state."""
    values = [getattr(plan, field.name) for field in fields(plan)]
    arrays = (array for value in values for array in (value if isinstance(value, tuple) else (value,)))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def decode(depth: int, steps: int) -> list[Step]:
    """All rows decode, at contexts from 128 tokens on."""
    stepper = Stepper(depth, max_step_tokens=65_536)
    for _ in range(ROWS):
        stepper.add(128, steps + 100)
    for _ in range(10):
        stepper.step()
    return [stepper.step() for _ in range(steps)]


def mixed(depth: int, steps: int) -> list[Step]:
    """About eight rows of 128 to 1024 tokens end in each step, and as many waiting ones join with their
    prefill."""
    stepper, arrivals = Stepper(depth, max_step_tokens=8192), Arrivals(steps)
    times = []
    for _ in range(steps + 50):
        arrivals.refill(stepper)
        times.append(stepper.step())
    return times[50:]


def documents(depth: int, steps: int, *, join: bool) -> tuple[list[Step], list[Step]]:
    """Rows ask about 16 documents of 2,000 tokens under a system prompt of 200; all of them decode, or about
    eight end in each step and as many `join`. Times without prefix groups in the plans, and with them."""
    random = np.random.default_rng(2)
    system = random.integers(0, 32_000, 200).tolist()
    beginnings = [(*system, *random.integers(0, 32_000, 2000).tolist()) for _ in range(16)]
    both = [Stepper(depth, 65_536, costs) for costs in (None, SharingCosts())]
    waiting = [Arrivals(steps, beginnings) for _ in both]
    for stepper in both:
        for row in range(ROWS):
            stepper.add(50, 8 + row % 48 if join else steps + 100, beginnings[row % len(beginnings)])
    times: tuple[list[Step], list[Step]] = ([], [])
    for _ in range(steps + 50):
        for stepper, arrivals, taken in zip(both, waiting, times, strict=True):
            if join:
                arrivals.refill(stepper)
            taken.append(stepper.step())
    return times[0][50:], times[1][50:]


class Arrivals:
    """Requests for `steps` steps, the same in every run."""

    def __init__(self, steps: int, beginnings: Sequence[Sequence[int]] = ((),)) -> None:
        lengths = np.random.default_rng(1).integers(128, 1024, (ROWS + 64 + 10 * steps, 2))
        self._lengths = iter(lengths.tolist())
        self._beginnings = beginnings

    def refill(self, stepper: Stepper) -> None:
        while stepper.scheduler.stats().rows_waiting < 64:
            prompt_tokens, spread = next(self._lengths)
            beginning = self._beginnings[spread % len(self._beginnings)]
            stepper.add(50 if beginning else prompt_tokens, 8 + spread % 48, beginning)


def show(name: str, steps: Sequence[Step], limits: machine.Limits) -> None:
    times = [step.ms for step in steps]
    p95 = statistics.quantiles(times, n=20)[-1]
    least = statistics.median(step.array_bytes for step in steps) / limits.read_bytes_s * 1e3
    figures = f"median {statistics.median(times):.3f} ms, P95 {p95:.3f} ms, limit {least:.4f} ms"
    print(f"{name:34} {ROWS} rows: {figures}")


def main() -> None:
    parser = parser_of("brain", __doc__)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    gc.disable()  # the collector's pauses are the process's, not the brain's
    limits = machine.measure(1)
    print(f"{machine.describe()}, 1 thread, {limits}")
    for depth in (0, 1):
        show(f"decode, depth {depth}", decode(depth, steps), limits)
        show(f"mixed, depth {depth}", mixed(depth, steps), limits)
    for join in (False, True):
        alone, together = documents(1, steps, join=join)
        name = "documents, rows join" if join else "documents, decode"
        show(name, alone, limits)
        show(f"{name}, prefix groups", together, limits)
        added = statistics.median(b.ms - a.ms for a, b in zip(alone, together, strict=True))
        print(f"{'':34} prefix groups add {added:.3f} ms a step in the median")


if __name__ == "__main__":
    main()
