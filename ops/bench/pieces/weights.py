"""Steps of an engine by the format of its weights: as they are, quantised at load, and in a GGUF file's bits.

    python -m ops.bench weights [--models smol135m qwen06b] [--weights auto int8 Q8_0 Q4_0 Q4_1]

Milliseconds of a whole step of decoding rows, replayed, and from a prompt to its first token; in brackets how
many times as fast as the first format. The engines of a model are there together and take turns. Weights of
Q4_K are computed as those of Q4_1 are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ops.bench import plots
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.compiled_config import compiled_config
from ops.bench.models.packed_checkpoint import packed_checkpoint
from ops.bench.models.size import size_of
from ops.bench.pieces.replay import PROMPT, TURN, fill, step_s
from ops.bench.plots import Row
from ops.bench.workloads import make

from millstream_worker.engine.assembly import build
from millstream_worker.engine.engine import Engine
from millstream_worker.engine.protocol.config import EngineConfig, EngineInfo
from millstream_worker.engine.protocol.request import EngineRequest, SamplingSpec
from millstream_worker.engine_link.link import engine_environment

AS_THEY_ARE = ("auto", "int8")  # settings of a worker; the others are types of GGUF
_PREFILL = 10**6  # the number of its requests


def measure(
    model: str,
    options: argparse.Namespace,
    build: Callable[[EngineConfig, Callable[[str], None]], tuple[Any, EngineInfo]] = build,
) -> list[Row]:
    """A row for each format of weights."""
    folder = checkpoint(model, "cpu")
    size = size_of(folder)
    most = max(options.rows)
    context = options.prefill + len(options.rows) * (options.turns + 2) * TURN
    engines: dict[str, Engine[Any]] = {}
    table: dict[str, Row] = {}
    for weights in options.weights:
        config = compiled_config(folder, size, most, context, options.threads)
        engines[weights], info = build(_in_form(config, folder, weights), lambda message: None)
        bits = 8 * info.weight_bytes / info.parameters
        named = f"{info.weights} ({bits:.2f} bits)"
        table[weights] = {"model": model, "weights": named, "MB": round(info.weight_bytes / 1e6)}
    _add(table, f"prefill of {options.prefill:,} ms", _prefills(engines, size.vocab_size, options))
    begun = 0
    for rows in sorted(options.rows):
        for engine in engines.values():
            fill(engine, make("a", size.vocab_size), range(begun, rows), context - PROMPT)
        begun = rows
        seconds = _turns(engines, options.turns, lambda engine: [step_s(engine) for _ in range(TURN)][1:])
        _add(table, f"{rows} rows ms", seconds)
    return list(table.values())


def _in_form(config: EngineConfig, folder: Path, weights: str) -> EngineConfig:
    if weights in AS_THEY_ARE:
        return replace(config, weights=weights)
    return replace(config, model=str(packed_checkpoint(folder, weights)))


def _prefills(
    engines: Mapping[str, Engine[Any]], vocab: int, options: argparse.Namespace
) -> dict[str, float]:
    prompts = iter(make("document", vocab, 1.0).prompts)

    def prefill(engine: Engine[Any]) -> list[float]:
        prompt = tuple((next(prompts) * (options.prefill // 1024 + 1))[: options.prefill])
        refused = engine.add(EngineRequest(_PREFILL, prompt, 1, SamplingSpec(temperature=0.0)))
        assert refused is None, refused
        before = time.perf_counter()
        while (step := engine.step()) is None or not step.tokens:
            pass
        return [time.perf_counter() - before]

    for engine in engines.values():
        prefill(engine)
    return _turns(engines, options.turns, prefill)


def _turns(
    engines: Mapping[str, Engine[Any]], turns: int, run: Callable[[Engine[Any]], list[float]]
) -> dict[str, float]:
    """The median of the seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(turns):
        for name, engine in engines.items():
            seconds[name] += run(engine)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _add(table: Mapping[str, Row], column: str, seconds: Mapping[str, float]) -> None:
    first = next(iter(seconds.values()))
    for name, one in seconds.items():
        table[name][column] = f"{1e3 * one:,.1f} ({first / one:.2f}x)"


def main() -> None:
    options = _options()
    os.environ.update(engine_environment(os.environ, options.threads))  # before torch is imported
    print("\n".join(plots.caption("weights")), end="\n\n")
    print(plots.markdown([row for model in options.models for row in measure(model, options)]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m ops.bench weights", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["smol135m", "qwen06b"])
    parser.add_argument("--weights", nargs="+", default=["auto", "int8", "Q8_0", "Q4_0", "Q4_1"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--turns", type=int, default=6, help=f"of each: {TURN} steps, or a prompt")
    parser.add_argument("--threads", type=int, default=0, help="of an engine; 0: one for each core")
    return parser.parse_args()


if __name__ == "__main__":
    main()
