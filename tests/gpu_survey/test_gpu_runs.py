"""The committed file of all reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ops.gpu_survey import gpu_runs


def written(folder: Path, date: str, tokens_s: float, log: str = "", device: str = "cuda") -> Path:
    numbers = {"what": "decode, numbers", "found": "1", "numbers": {"tokens_s": tokens_s}}
    part: dict[str, Any] = {"name": "llama8b", "end": "done", "findings": [numbers]}
    report = {
        "step": "1",
        "date": date,
        "commit": "abc",
        "device": device,
        "parts": [part | ({"log": log} if log else {})],
    }
    file = folder / "report.json"
    file.write_text(json.dumps(report))
    return file


def test_a_report_is_appended_or_replaces_one_of_the_same_time(tmp_path: Path) -> None:
    runs = tmp_path / "runs.json"
    gpu_runs.merge(written(tmp_path, "2026-01-01 10:00", 1.0, log="x" * 5000), runs)
    gpu_runs.merge(written(tmp_path, "2026-01-02 10:00", 2.0), runs)
    gpu_runs.merge(written(tmp_path, "2026-01-02 10:00", 3.0), runs)
    first, second = gpu_runs.read(runs)
    assert len(first["parts"][0]["log"]) == 400
    assert second["parts"][0]["findings"][0]["numbers"] == {"tokens_s": 3.0}
    assert list(gpu_runs.lines(runs))[1] == "    decode, numbers: {'tokens_s': 1.0}"


def test_what_is_not_of_a_gpu_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is of the device 'null'"):
        gpu_runs.merge(written(tmp_path, "2026-01-01 10:00", 1.0, device="null"), tmp_path / "runs.json")


def test_the_committed_file_can_be_read() -> None:
    assert list(gpu_runs.lines())
