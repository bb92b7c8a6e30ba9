"""Steps of rows with long contexts, by the format of their keys and values.

    python -m ops.bench context [--models tiny14m smol135m] [--rows 32] [--tokens 4000]

Milliseconds of a whole step of decoding rows, replayed; in brackets how many times as fast as the first
format. Prompts are not computed, as that would take minutes: their keys and values are random numbers. The
formats take turns, each in an engine of its own.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from ops.bench import plots
from ops.bench.command_line import add_threads, parsed, parser_of
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.compiled_config import compiled_config
from ops.bench.models.size import size_of
from ops.bench.pieces.attention import randomize
from ops.bench.pieces.replay import TURN, step_s
from ops.bench.plots import Row
from ops.bench.workloads import make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

A_STEP = 512  # tokens of prompts in it, at least
FORMATS = {"auto": 1.0, "int8": 0.6}  # and the share of memory that a head of 64 or more needs


@dataclass(slots=True, eq=False)
class _Uncomputed:
    """Steps whose logits are zeros."""

    eager: Any
    vocab: int

    def run(self, plan: Plan) -> torch.Tensor:
        return torch.zeros(len(plan.logit_indices), self.vocab)


def measure(model: str, options: argparse.Namespace) -> list[Row]:
    """A row for each format."""
    folder = checkpoint(model, "cpu")
    size = size_of(folder)
    # The first rows decode until the last prompt is computed.
    outputs = (options.steps + 2) * TURN + options.rows * options.tokens // A_STEP
    config = compiled_config(folder, size, options.rows, options.tokens + outputs, options.threads)
    seconds: dict[str, list[float]] = {kv_dtype: [] for kv_dtype in FORMATS}
    about: dict[str, Row] = {}
    for _ in range(options.turns):
        for kv_dtype, taken in seconds.items():
            kv_memory = str(int(int(config.kv_memory) * FORMATS[kv_dtype]))
            built = replace(config, kv_dtype=kv_dtype, kv_memory=kv_memory)
            engine, info = build(built, lambda message: None)
            about[kv_dtype] = {"model": model, "keys and values": info.kv_format}
            tokens = min(options.tokens, info.context_length - outputs)
            about[kv_dtype]["rows x tokens"] = f"{options.rows} x {tokens:,}"
            _fill(engine, size.vocab_size, options.rows, tokens, outputs)
            taken += list(_steps(engine, options.steps * TURN))
    medians = {kv_dtype: statistics.median(taken) for kv_dtype, taken in seconds.items()}
    return [
        about[kv_dtype] | {"step ms": f"{1e3 * median:,.1f} ({medians['auto'] / median:.2f}x)"}
        for kv_dtype, median in medians.items()
    ]


def _fill(engine: Engine[Any], vocab: int, rows: int, tokens: int, outputs: int) -> None:
    """Up to the step in which all rows decode, with random keys and values."""
    computed = engine.runner.model  # type: ignore[attr-defined]
    randomize(computed.eager.storage)
    engine.runner.model = _Uncomputed(computed.eager, vocab)  # type: ignore[attr-defined]
    prompt = make("shareddoc", vocab, 1.0).prompts[0]
    for handle in range(rows):
        whole = (handle, *(prompt * (tokens // len(prompt) + 1))[1:tokens])  # none begins like another
        refused = engine.add(EngineRequest(handle, whole, outputs, SamplingSpec(temperature=0.0)))
        assert refused is None, refused
    while (step := engine.step()) is None or len(step.tokens) < rows:
        assert not engine.idle, "no step has all rows"
    engine.runner.model = computed  # type: ignore[attr-defined]


def _steps(engine: Engine[Any], count: int) -> Iterator[float]:
    for _ in range(TURN):  # a size is recorded when it comes for the third time
        engine.step()
    for _ in range(count):
        yield step_s(engine)


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("context")), end="\n\n")
    print(plots.markdown([row for model in options.models for row in measure(model, options)]))


def _options() -> argparse.Namespace:
    parser = parser_of("context", __doc__)
    parser.add_argument("--models", nargs="+", default=["tiny14m", "smol135m"])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=4000, help="of a row, at most the model's context")
    parser.add_argument("--steps", type=int, default=4, help=f"of a turn, in units of {TURN}")
    parser.add_argument("--turns", type=int, default=3, help="of each format")
    add_threads(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
