"""Steps of an engine by the format of its weights: as they are, quantised at load, and in the own bits of a
GGUF file or of quantised safetensors.

    python -m ops.bench weights [--models smol135m qwen06b] [--weights auto int8 Q8_0 Q4_0 Q4_1 awq-int4 w8a8]

Milliseconds of a whole step of decoding rows, replayed, and from a prompt to its first token; in brackets how
many times as fast as the first format. One engine comes after the other: of several in a process, only the
newest replays its steps. Weights of Q4_K are computed as those of Q4_1 are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.bench import plots
from ops.bench.command_line import add_threads, parsed, parser_of
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.compiled_config import compiled_config
from ops.bench.models.packed_checkpoint import packed_checkpoint
from ops.bench.models.quantized_checkpoint import FORMS, quantized_checkpoint
from ops.bench.models.size import size_of
from ops.bench.pieces.replay import PROMPT, TURN, fill, step_s
from ops.bench.plots import Row
from ops.bench.workloads import make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec

AS_THEY_ARE = ("auto", "int8")  # settings of a worker; others are types of files
_PREFILL = 10**6  # the number of its requests


def measure(model: str, options: argparse.Namespace) -> list[Row]:
    """A row for each format of weights."""
    folder = checkpoint(model, "cpu")
    size = size_of(folder)
    context = options.prefill + len(options.rows) * (options.turns + 2) * TURN
    config = compiled_config(folder, size, max(options.rows), context, options.threads)
    found = []
    for weights in options.weights:
        engine, info = build(_in_form(config, folder, weights), lambda message: None)
        named = f"{info.weights} ({8 * info.weight_bytes / info.parameters:.2f} bits)"
        about: Row = {"model": model, "weights": named, "MB": round(info.weight_bytes / 1e6)}
        found.append((about, dict(_seconds(engine, size.vocab_size, context, options))))
    first = found[0][1]
    return [
        about | {name: f"{1e3 * one:,.1f} ({first[name] / one:.2f}x)" for name, one in seconds.items()}
        for about, seconds in found
    ]


def _seconds(
    engine: Engine[Any], vocab: int, context: int, options: argparse.Namespace
) -> Iterator[tuple[str, float]]:
    """Medians, by the table's column."""
    prompts = make("document", vocab, 1.0).prompts[: options.turns + 1]
    prefills = [_prefill(engine, prompt, options.prefill) for prompt in prompts][1:]
    yield f"prefill of {options.prefill:,} ms", statistics.median(prefills)
    begun = 0
    for rows in sorted(options.rows):
        fill(engine, make("a", vocab), range(begun, rows), context - PROMPT)
        begun = rows
        steps = [step_s(engine) for _ in range(options.turns * TURN)]
        yield f"{rows} rows ms", statistics.median(steps)


def _in_form(config: EngineConfig, folder: Path, weights: str) -> EngineConfig:
    if weights in AS_THEY_ARE:
        return replace(config, weights=weights)
    made = quantized_checkpoint if weights in FORMS else packed_checkpoint
    return replace(config, model=str(made(folder, weights)))


def _prefill(engine: Engine[Any], prompt: Sequence[int], tokens: int) -> float:
    whole = tuple((list(prompt) * (tokens // len(prompt) + 1))[:tokens])
    refused = engine.add(EngineRequest(_PREFILL, whole, 1, SamplingSpec(temperature=0.0)))
    assert refused is None, refused
    before = time.perf_counter()
    while (step := engine.step()) is None or not step.tokens:
        pass
    return time.perf_counter() - before


def main() -> None:
    options = _options()
    print("\n".join(plots.caption("weights")), end="\n\n")
    print(plots.markdown([row for model in options.models for row in measure(model, options)]))


def _options() -> argparse.Namespace:
    parser = parser_of("weights", __doc__)
    parser.add_argument("--models", nargs="+", default=["smol135m", "qwen06b"])
    parser.add_argument("--weights", nargs="+", default=["auto", "int8", "Q8_0", "Q4_0", "Q4_1"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--turns", type=int, default=6, help=f"of each: {TURN} steps, and a prompt")
    add_threads(parser)
    return parsed(parser)


if __name__ == "__main__":
    main()
