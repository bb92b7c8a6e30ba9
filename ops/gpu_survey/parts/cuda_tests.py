"""Tests that need a GPU, or tell more on one, by pytest: CUDA graphs; engines beside the CPU's; pages that
cross the bus; draws beside the CPU's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

from ops.gpu_survey.carried import ROOT
from ops.gpu_survey.survey import Survey

_TESTS = ROOT / "tests"
# Neither the project's settings nor the fixtures for servers: their plugins need not be there.
_OPTIONS = (
    "-c", "/dev/null", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:randomly", "-q",
    "--tb=short", "-W", "ignore::pytest.PytestUnknownMarkWarning",
)  # fmt: skip

_TESTS_FAILED = 1  # pytest's exit status
_RAISED = re.compile(r"E\s+(?:[\w.]+\.)?(\w+(?:Error|Exception))\b")


def graphs(survey: Survey) -> None:
    _run(survey, "gpu/test_graphs_on_cuda.py")


def engines(survey: Survey) -> None:
    _run(survey, "gpu/test_engine_on_cuda.py")


def swaps(survey: Survey) -> None:
    _run(survey, "gpu/test_host_swap_on_cuda.py")


def draws(survey: Survey) -> None:
    _run(survey, "engine/runner/gpu/sampling/interpreted_draws.py")


def _run(survey: Survey, file: str) -> None:
    survey.need_cuda()
    survey.attempt(file, partial(_pytest, _TESTS / file))


def _pytest(file: Path) -> str:
    command = [sys.executable, "-m", "pytest", str(file), f"--confcutdir={file.parent}", *_OPTIONS]
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(finished.stdout)
    lines = (finished.stdout.strip() or "nothing printed").splitlines()
    if not finished.returncode:
        return lines[-1]
    errors = [line for line in lines if (kind := _RAISED.match(line)) and kind[1] != "AssertionError"]
    if "NULL_GPU" in os.environ and finished.returncode == _TESTS_FAILED and not errors:
        return f"{lines[-1]}; comparisons fail on the null GPU, where every number is 0"
    raise AssertionError(
        "; ".join([lines[-1], *errors, *(line for line in lines if line.startswith("FAILED"))])
    )
