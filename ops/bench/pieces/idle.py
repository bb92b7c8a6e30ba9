"""What an engine wastes over a real run: time outside the model's forward, and memory inside its blocks.

    python -m ops.bench idle [--models tiny14m smol135m] [--workload r]

Time: the share of a run in which the host does not compute the model: it lays out inputs and draws tokens, or
it plans, settles and encodes frames. The smaller the model, the larger it is. A GPU works on by itself, and
tells by its own clock for how long it had nothing to do. Memory: for each running row and step, the tokens
that its blocks could hold and do not, which is always less than a block.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

from ops.bench import plots
from ops.bench.command_line import add_engine, parsed, parser_of
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.size import size_of
from ops.bench.plots import Row
from ops.bench.steps import Watch, row_waste, watched
from ops.bench.workloads import NAMES, Workload, make

from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.frames import encode
from millstream_worker.engine.protocol.outputs import Step
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

BLOCK = 16


@dataclass(slots=True)
class Waste:
    """Tokens that rows' blocks could hold and do not, over all steps of a run."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    most: int = 0

    def note(self, unused: list[int]) -> None:
        self.steps += 1
        self.rows += len(unused)
        self.tokens += sum(unused)
        self.most = max(self.most, *unused, 0)

    def row(self, pool_tokens: int) -> Row:
        return {
            "unused tokens per row": self.tokens / max(self.rows, 1),
            "most": self.most,
            "of a block": BLOCK,
            "% of the pool": 100 * self.tokens / max(self.steps, 1) / pool_tokens,
        }


def measure(model: str, options: argparse.Namespace) -> Row:
    """One run of the workload, after a short one that is not counted."""
    folder = checkpoint(model, options.device)
    size = size_of(folder)
    work = make(options.workload, size.vocab_size, options.scale)
    blocks = (work.prompt_tokens + work.output_tokens) // BLOCK + 2 * options.rows
    config = EngineConfig(
        str(folder),
        device=options.device,
        threads=options.threads,
        kv_memory=str(blocks * BLOCK * size.kv_token_bytes),
        block_size=BLOCK,
        max_rows=options.rows,
        compile_model=options.compile_model,
        speculate="off",  # random weights repeat themselves
    )
    engine, info, watch = watched(config)
    _run(engine, watch, make(options.workload, size.vocab_size, 2 / len(work.prompts), -1))
    waste, seconds = _run(engine, watch, work)
    share, device_idle = 100 / seconds, watch.device_idle
    runner_s = watch.launch_s + watch.settle_s
    return {
        "model": model,
        "rows": len(work.prompts),
        "ms per step": 1e3 * seconds / watch.steps,
        "forward %": share * watch.forward_s,
        "inputs and draw %": share * (runner_s - watch.forward_s),
        "plan, settle, frames %": share * (seconds - runner_s),
        **({} if device_idle is None else {"device idle %": 100 * device_idle}),
        **waste.row(info.token_capacity),
    }


def _run(engine: Engine[Any], watch: Watch, work: Workload) -> tuple[Waste, float]:
    """Returns the seconds without those of looking at the rows."""
    waste, aside_s = Waste(), 0.0
    watch.restart()
    for handle, (prompt, length) in enumerate(zip(work.prompts, work.output_lengths, strict=True)):
        request = EngineRequest(handle, tuple(prompt), length, SamplingSpec(temperature=0.0))
        refused = engine.add(request)
        assert refused is None, refused
    while not engine.idle:
        step: Step | None = engine.step()
        if step is not None:
            encode(step)
            before = time.perf_counter()
            waste.note(row_waste(engine.scheduler))
            aside_s += time.perf_counter() - before
    return waste, watch.wall_s - aside_s


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("idle", options.device)), end="\n\n")
    print(plots.markdown([measure(model, options) for model in options.models]))


def _options() -> argparse.Namespace:
    parser = parser_of("idle", __doc__)
    parser.add_argument("--models", nargs="+", default=["tiny14m", "smol135m"])
    parser.add_argument("--workload", choices=NAMES, default="r")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the workload's rows")
    parser.add_argument("--rows", type=int, default=64, help="most rows in the batch")
    add_engine(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
