"""ops/bench/gpu_runs.json: the reports of all runs on GPUs, which is committed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPU_RUNS = Path(__file__).parents[1] / "bench" / "gpu_runs.json"
_LOG_TAIL = 400  # characters of a failed part's log that are kept


def merge(report: Path, runs: Path = GPU_RUNS) -> None:
    """Append a report of a GPU, in place of one of the same step and time. Raises ValueError for others."""
    new = json.loads(report.read_text("utf-8"))
    if new["device"] != "cuda":
        raise ValueError(f"{report} is of the device {new['device']!r}: only figures of a GPU are kept")
    for part in new["parts"]:
        if "log" in part:
            part["log"] = part["log"][-_LOG_TAIL:]
    known = [one for one in read(runs) if (one["date"], one["step"]) != (new["date"], new["step"])]
    runs.write_text(json.dumps([*known, new], indent=1) + "\n", "utf-8")


def read(runs: Path = GPU_RUNS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(runs.read_text("utf-8")) if runs.exists() else []
    return found


def lines(runs: Path = GPU_RUNS) -> Iterator[str]:
    """How each part ended, and its workloads' numbers."""
    for run in read(runs):
        for part in run["parts"]:
            yield f"{run['date']} {run['commit']} step {run['step']} {part['name']}: {part['end']}"
            for one in part["findings"]:
                numbers = one.get("numbers", {})
                if "tokens_s" in numbers:
                    yield f"    {one['what']}: {numbers}"
