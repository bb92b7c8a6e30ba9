"""Pictures of the newest figures in gpu_runs.json: one for each workload, beside vLLM's and the bound."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib import pyplot as plt
from ops.bench.limits.rates import requests_s
from ops.bench.load.arrivals import Prompts
from ops.bench.machine import Limits
from ops.bench.models.shapes import LLAMA_8B, QWEN_06B
from ops.bench.models.size import size_of
from ops.bench.plots import COLOURS, FOLDER
from ops.bench.workloads import make
from ops.gpu_survey import gpu_runs
from ops.gpu_survey.expected import VLLM_H200

SHAPES = {"llama8b": LLAMA_8B, "qwen06b": QWEN_06B}
H200 = Limits(read_bytes_s=4.5e12, flops_s=790e12)  # measured: its memory by our best kernel, products
_ROWS = 256  # of a step, at most
_GREY = "0.8"


def draw_all(folder: Path = FOLDER) -> list[Path]:
    """Returns the files that were written."""
    sizes = {model: size_of_shape(shape) for model, shape in SHAPES.items()}
    drawn = []
    for workload in VLLM_H200["llama8b"]:
        shown = {model: bars(model, workload, size) for model, size in sizes.items()}
        drawn.append(draw(path_of(workload, folder), workload, shown))
    return drawn


def path_of(workload: str, folder: Path = FOLDER) -> Path:
    return folder / f"gpu_{workload}.png"


def newest(model: str, workload: str) -> dict[str, Any]:
    """Returns the numbers of the last greedy run with the default settings."""
    found: list[dict[str, Any]] = [
        one["numbers"]
        for run in gpu_runs.read()
        for part in run["parts"]
        for one in part["findings"]
        if not part["environment"].get("SURVEY_ENGINE")
        and one.get("numbers", {}).get("temperature") == 0.0
        and (one["numbers"]["model"], one["numbers"]["workload"]) == (model, workload)
    ]
    return found[-1]


def bound_tokens_s(workload: str, size: Any) -> float:
    """Returns output tokens/s if nothing took time but products and reading, at the card's rates, and a
    shared prefix were computed once."""
    work = make(workload, size.vocab_size)
    rows, shared = min(_ROWS, len(work.prompts)), work.shared_tokens
    prompts = Prompts(shared, round(mean(map(len, work.prompts))) - shared, round(mean(work.output_lengths)))
    return prompts.output * requests_s(size, prompts, rows, bool(shared), H200)


def size_of_shape(shape: Mapping[str, Any]) -> Any:
    from ops.gpu_survey.parts.random_model import folder

    with tempfile.TemporaryDirectory() as place:
        return size_of(folder(dict(shape), Path(place)))


def bars(model: str, workload: str, size: Any) -> dict[str, float]:
    """Returns the height of each bar: thousands of output tokens/s; of `single` milliseconds per token."""
    ours = newest(model, workload)["tokens_s"]
    bound, theirs = bound_tokens_s(workload, size), VLLM_H200[model][workload]
    if workload == "single":
        return {"bound": 1e3 / bound, "Millstream": 1e3 / ours, "vLLM 0.25": theirs}
    return {"bound": bound / 1e3, "Millstream": ours / 1e3, "vLLM 0.25": theirs / 1e3}


def draw(path: Path, workload: str, shown: Mapping[str, Mapping[str, float]]) -> Path:
    """Draws a panel for each model. `shown`: by model what `bars` returns."""
    figure, axes = plt.subplots(1, len(shown), figsize=(5.2, 2.6), squeeze=False)
    for axis, (model, values) in zip(axes[0], shown.items(), strict=True):
        places = axis.bar(
            [*values], [*values.values()], color=[_GREY, *COLOURS[: len(values) - 1]], width=0.7
        )
        axis.bar_label(places, fmt="{:,.3g}", fontsize=8)
        axis.set_title({"llama8b": "8B", "qwen06b": "0.6B"}[model], loc="left", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.15)
    unit = "ms per token: lower is better" if workload == "single" else "thousand output tokens/s"
    figure.suptitle(f"{workload}, one H200, {unit}", fontsize=10, x=0.01, ha="left", weight="bold")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
