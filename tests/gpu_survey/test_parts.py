"""What the survey's parts have in themselves: the rest of them is tested by running them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from ops.bench.models.shapes import LLAMA_8B, QWEN_06B
from ops.gpu_survey.carried import ROOT
from ops.gpu_survey.parts import step_profile
from ops.gpu_survey.parts.one_line import double_kernel
from ops.gpu_survey.parts.random_model import folder
from ops.gpu_survey.survey import Survey
from safetensors import safe_open
from support.engine.kernel_resources import Launch, compiled, hazards

from millstream_worker.engine.runner.checkpoint.checkpoint import resolve


def test_the_kernel_of_one_line_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    numbers = torch.empty(16)
    assert compiled(Launch(double_kernel, (numbers, numbers), {"SIZE": 16}, {}), 90).registers > 0


def test_a_write_to_wgmma_operands_before_the_wait_is_found() -> None:
    code = ["HGMMA.64x64x16.F32.BF16 R24, R8, gdesc[UR4], R24", "WARPGROUP.DEPBAR.LE gsb0, 0x0"]
    early, late = "@P0 MOV R10, R2", "IADD3 R40, R8, R9, RZ"
    assert hazards(sass(code[0], early, code[1])) == 1
    assert hazards(sass(code[0], "MOV R7, R2", late, code[1], early)) == 0
    assert hazards(sass(code[0], "LDS.128 R4, [R2]", "LDS.128 R6, [R2]", code[1])) == 2


@pytest.mark.parametrize("shape", [LLAMA_8B, QWEN_06B])
def test_a_shape_passes_the_checks_of_a_folder(shape: dict[str, Any], tmp_path: Path) -> None:
    found = resolve(str(folder(shape, tmp_path / "model")), str(tmp_path / "cache"), print)
    assert found.folder == tmp_path / "model"
    with safe_open(found.folder / "load.safetensors", framework="pt") as file:
        assert [*file.keys()] == ["none"]


def sass(*lines: str) -> str:
    return "\n".join(
        f"        /*{16 * place:04x}*/                   {line} ;" for place, line in enumerate(lines)
    )


def kernel(name: str, start: int, end: int) -> SimpleNamespace:
    span = SimpleNamespace(start=start, end=end, elapsed_us=lambda: end - start)
    return SimpleNamespace(name=name, time_range=span)


def test_a_profile_is_summed_up_also_one_without_kernels(tmp_path: Path) -> None:
    survey = Survey("profile", "cuda", tmp_path)
    steps = step_profile._STEPS
    seen = [kernel("product", 10 * step, 10 * step + 6) for step in range(steps)]
    found = step_profile.summed(survey, "decode", seen, 1.0)
    assert found == f"1 kernels a step, 0.01 of {(10 * steps - 4) / steps / 1e3:.2f} ms a step busy"
    line = json.loads((tmp_path / "profile.jsonl").read_text())
    assert line["numbers"] == {"us": 6.0, "count": 1.0}
    assert step_profile.summed(survey, "decode", [], 12.0).startswith("the profiler saw no kernel")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_step_runs_in_tiny_form_on_the_cpu(tmp_path: Path) -> None:
    """By the documented command."""
    command = [sys.executable, "-m", "ops.gpu_survey", "run", "1", "--device", "cpu", "--out", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    ends = {part["name"]: part["end"] for part in report["parts"]}
    assert {name for name, end in ends.items() if end == "done"} == {
        "machine",
        "llama8b",
        "narrow",
        "sampler",
    }
    assert {*ends.values()} == {"done", "needs CUDA"}
