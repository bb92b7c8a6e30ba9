"""Steps of decoding rows: called by Python, and replayed as they were recorded, in turns in one engine.

    python -m ops.bench replay [--models tiny14m smol135m] [--rows 1 8 32]

Milliseconds of a whole step, with planning, draw and settling; beside them the least that this machine's
memory and matrix units need for it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

from ops.bench import machine, plots
from ops.bench.command_line import add_threads, parsed, parser_of
from ops.bench.limits.rates import decode_tokens_s
from ops.bench.machine import Limits
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.compiled_config import compiled_config
from ops.bench.models.size import size_of
from ops.bench.plots import Row
from ops.bench.workloads import Workload, make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.batch.plan import LOGITS
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine.runner.model.model_heads import FEWEST

PROMPT = 64  # tokens
TURN = 8  # steps, of which the first is not counted


def measure(model: str, rows: int, options: argparse.Namespace, limits: Limits) -> Row:
    folder = checkpoint(model, "cpu")
    size = size_of(folder)
    context = PROMPT + 2 * TURN * options.turns + 3 * TURN
    config = compiled_config(folder, size, rows, context, options.threads)
    engine: Engine[Any] = build(config, lambda message: None)[0]
    work = make("a", size.vocab_size, 1.0)
    fill(engine, work, range(rows), context - PROMPT)
    recorded = engine.runner.model  # type: ignore[attr-defined]
    recordings = LOGITS, (max(FEWEST, rows), max(FEWEST, rows))
    assert recordings in getattr(recorded, "_steps", ()), f"{rows} rows of {model} are not recorded here"
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(2 * options.turns):
        replayed = turn % 2 == 1
        engine.runner.model = recorded if replayed else recorded.eager  # type: ignore[attr-defined]
        seconds[replayed] += [step_s(engine) for _ in range(TURN)][1:]
    called, replayed_s = (statistics.median(seconds[replayed]) for replayed in (False, True))
    least = rows / decode_tokens_s(size, rows, PROMPT + TURN * options.turns, limits)
    return {
        "model": model,
        "rows": rows,
        "called ms": 1e3 * called,
        "replayed ms": 1e3 * replayed_s,
        "ratio": called / replayed_s,
        "least ms": 1e3 * least,
    }


def fill(engine: Engine[Any], work: Workload, added: range, tokens: int) -> None:
    """Up to the first step in which all rows decode, with those that were there before they were added."""
    for handle in added:
        request = EngineRequest(
            handle, tuple(work.prompts[handle][:PROMPT]), tokens, SamplingSpec(temperature=0.0)
        )
        refused = engine.add(request)
        assert refused is None, refused
    while (step := engine.step()) is None or len(step.tokens) < added.stop:
        pass
    for _ in range(TURN):  # a size is recorded when it comes for the third time
        engine.step()


def step_s(engine: Engine[Any]) -> float:
    before = time.perf_counter()
    engine.step()
    return time.perf_counter() - before


def main() -> None:
    options = _options()
    limits = machine.measure(options.threads or len(os.sched_getaffinity(0)))
    print("\n".join(plots.caption("replay")), end="\n\n")
    print(f"{limits}\n")
    rows = [measure(model, rows, options, limits) for model in options.models for rows in options.rows]
    print(plots.markdown(rows))


def _options() -> argparse.Namespace:
    parser = parser_of("replay", __doc__)
    parser.add_argument("--models", nargs="+", default=["tiny14m", "smol135m"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--turns", type=int, default=10, help=f"of {TURN} steps, of each kind")
    add_threads(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
