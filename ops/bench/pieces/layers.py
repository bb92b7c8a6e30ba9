"""A model's forward without its attention: as torch computes it, as an engine loads it (with weights
in panels where the library multiplies them), and compiled as well.

    python -m ops.bench layers --shapes tiny14m smol135m --rows 1 32 --threads 1

They take turns in one process. Printed are milliseconds of CPU time of the least and the median forward,
the ratio of the medians to the first, and what compiling took (with `--cache FOLDER` again: from there).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from ops.bench.machine import describe, precision
from ops.bench.models.checkpoints import shaped_checkpoint
from ops.bench.models.shapes import SHAPES

from millstream_worker.engine.brain.batch.plan import LOGITS
from millstream_worker.engine.runner.compiled.compile import CannotCompile, compile_model
from millstream_worker.engine.runner.model.load import LoadedModel, load_model, occupy


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    print(f"{describe()}, {options.threads} threads, {options.dtype}")
    with tempfile.TemporaryDirectory() as fresh:
        for shape in options.shapes:
            _compare(shape, options, Path(options.cache or fresh))


def _compare(shape: str, options: argparse.Namespace, cache: Path) -> None:
    attention = {"plain": "torch", "loaded": "auto", "compiled": "auto"}
    models = {name: _loaded(shape, options.dtype, chosen) for name, chosen in attention.items()}
    wall, used = time.perf_counter(), time.process_time()
    try:
        compile_model(models["compiled"], cache, lambda message: None)
    except CannotCompile as error:
        print(f"{shape}: not compiled: {error}")
        del models["compiled"]
    wall, used = time.perf_counter() - wall, time.process_time() - used
    print(f"{shape}: compiled in {wall:.1f} s, {used:.1f} s of them of this process")
    for loaded in models.values():
        for module in loaded.anatomy.attention_modules:
            occupy(module, _take_values)
    for rows in options.rows:
        with torch.inference_mode():  # as in a step
            tokens = [torch.arange(rows) for _ in range(3)]
        runs = {name: _timed(loaded, tokens) for name, loaded in models.items()}
        spent: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.times):
            for name, run in runs.items():
                spent[name].append(run())
        first = statistics.median(spent["plain"])
        for name, ms in spent.items():
            median = statistics.median(ms)
            print(f"  {rows:4} rows {name:9} {min(ms):8.2f} {median:8.2f} ms {first / median:6.2f}x")


def _timed(loaded: LoadedModel, tokens: list[torch.Tensor]) -> Callable[[], float]:
    """Returns the milliseconds of a forward with the logits of all tokens."""

    def run() -> float:
        start = time.process_time()
        loaded.heads(LOGITS, *tokens)
        return (time.process_time() - start) * 1e3

    run()
    return run


def _loaded(shape: str, dtype: str, attention: str) -> LoadedModel:
    """Without native attention the linear layers are not the library's either."""
    folder = str(shaped_checkpoint(shape))
    device = torch.device("cpu")
    return load_model(folder, dtype=getattr(torch, dtype), device=device, attention=attention)


def _take_values(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """In place of attention: each head gets its values back."""
    return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m ops.bench layers", description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["tiny14m", "smol135m"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 32, 256])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=precision())
    parser.add_argument("--times", type=int, default=30, help="forwards of each")
    parser.add_argument("--cache", default="", help="folder of compiled code; unset: a fresh one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
