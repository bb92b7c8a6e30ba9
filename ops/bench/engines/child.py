"""One engine in a process of its own: loads it, warms up, runs the workloads, and writes a line of JSON for
each, so that what was done before a time limit is not lost.

    python -m ops.bench.engines.child ASSIGNMENT        a JSON object with the fields of `Assignment`

It runs under the interpreter that the engine is installed in, and imports nothing of Millstream's own unless
that is the engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.bench import memory
from ops.bench.engines import adapters
from ops.bench.engines.adapters.interface import Setup
from ops.bench.workloads import Workload, make

WARM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Assignment:
    engine: str
    setup: Setup
    vocab_size: int
    workloads: tuple[str, ...]
    scale: float
    seed: int
    answer: str  # file that the lines are appended to

    @classmethod
    def from_json(cls, text: str) -> Assignment:
        fields = json.loads(text)
        return cls(**fields | {"setup": Setup(**fields["setup"]), "workloads": tuple(fields["workloads"])})

    def workload(self, name: str) -> Workload:
        return make(name, self.vocab_size, self.scale, self.seed)


def main() -> None:
    assignment = Assignment.from_json(sys.argv[1])
    device = assignment.setup.device
    with Path(assignment.answer).open("a") as answer:

        def tell(**line: Any) -> None:
            answer.write(json.dumps(line) + "\n")
            answer.flush()

        start = time.perf_counter()
        engine = adapters.load(assignment.engine, assignment.setup)
        tell(version=engine.version, load_s=round(time.perf_counter() - start, 2))
        for name in assignment.workloads:
            workload = assignment.workload(name)
            engine.run(warm_up(assignment, name), salt=f"warm-{name}-{assignment.seed}")
            memory.reset_peak(device)
            run = engine.run(workload, salt=f"{name}-{assignment.seed}")
            tell(workload=name, run=replace(run, peak_bytes=memory.peak_bytes(device)).as_json())
    sys.stdout.flush()
    os._exit(0)  # an engine's own exit may take long, and its result is written


def warm_up(assignment: Assignment, name: str) -> Workload:
    """The same rows with other prompts, and a few tokens each: the engine compiles, packs and allocates for
    such batches now.
    """
    cold = make(name, assignment.vocab_size, assignment.scale, -1 - assignment.seed)
    return replace(cold, output_lengths=[min(length, WARM_TOKENS) for length in cold.output_lengths])


if __name__ == "__main__":
    main()
