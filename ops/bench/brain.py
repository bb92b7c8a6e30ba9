"""What the brain costs per step: plan + settle with all arrays built, 256 rows, no model behind it.

    python ops/bench/brain.py [--steps 2000]

Prints median and 95th percentile in milliseconds for decode steps (pipeline depth 0 and 1) and for mixed
steps, in which rows end and others join all the time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from itertools import count

import numpy as np
from ops.bench import machine

from millstream_worker.engine.brain.plan import Drawn, Plan
from millstream_worker.engine.brain.scheduler import Scheduler, SchedulerConfig
from millstream_worker.engine.request import EngineRequest

ROWS = 256
CONTEXT = 8192


class Stepper:
    """A scheduler whose draws come from nowhere: one step after the other, timed."""

    def __init__(self, depth: int, max_step_tokens: int) -> None:
        config = SchedulerConfig(
            max_rows=ROWS,
            max_step_tokens=max_step_tokens,
            block_size=16,
            blocks=ROWS * CONTEXT // 16,  # nothing is preempted
            context_length=CONTEXT,
            prefix_cache=True,
            hash_seed=b"bench",
            pipeline_depth=depth,
        )
        self.scheduler = Scheduler(config)
        self._outstanding: list[Plan] = []
        self._random = np.random.default_rng(0)
        self._handles = count()

    def add(self, prompt_tokens: int, max_tokens: int) -> None:
        prompt = tuple(self._random.integers(0, 32_000, prompt_tokens).tolist())
        self.scheduler.add(EngineRequest(next(self._handles), prompt, max_tokens), 0.0)

    def step(self) -> float:
        """Plan and settle once; milliseconds spent in the scheduler."""
        started = time.perf_counter()
        plan = self.scheduler.plan(0.0)
        planned = time.perf_counter()
        assert plan is not None, "nothing to compute"
        self._outstanding.append(plan)
        if len(self._outstanding) <= self.scheduler.config.pipeline_depth:
            return (planned - started) * 1e3
        oldest = self._outstanding.pop(0)
        drawn = Drawn(self._random.integers(0, 32_000, len(oldest.noise), dtype=np.int32), {})
        resumed = time.perf_counter()
        self.scheduler.settle(drawn, 0.0)
        return (planned - started + time.perf_counter() - resumed) * 1e3


def decode(depth: int, steps: int) -> list[float]:
    """All rows decode, at contexts from 128 tokens on."""
    stepper = Stepper(depth, max_step_tokens=65_536)
    for _ in range(ROWS):
        stepper.add(128, steps + 100)
    for _ in range(10):
        stepper.step()
    return [stepper.step() for _ in range(steps)]


def mixed(depth: int, steps: int) -> list[float]:
    """About eight rows of 128 to 1024 tokens end in each step, and as many waiting ones join with their
    prefill."""
    stepper = Stepper(depth, max_step_tokens=8192)
    lengths = np.random.default_rng(1).integers(128, 1024, (ROWS + 64 + 10 * steps, 2)).tolist()
    requests = iter(lengths)
    times = []
    for _ in range(steps + 50):
        while stepper.scheduler.stats().rows_waiting < 64:
            prompt_tokens, spread = next(requests)
            stepper.add(prompt_tokens, 8 + spread % 48)
        times.append(stepper.step())
    return times[50:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    gc.disable()  # the collector's pauses are the process's, not the brain's
    print(machine.describe())
    for name, run, depth in (
        ("decode, depth 0", decode, 0),
        ("decode, depth 1", decode, 1),
        ("mixed, depth 0", mixed, 0),
        ("mixed, depth 1", mixed, 1),
    ):
        times = run(depth, steps)
        p95 = statistics.quantiles(times, n=20)[-1]
        print(f"{name:16} {ROWS} rows: median {statistics.median(times):.3f} ms, P95 {p95:.3f} ms")


if __name__ == "__main__":
    main()
