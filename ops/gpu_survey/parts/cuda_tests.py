"""The tests of tests/gpu, by pytest: CUDA graphs; engines beside the CPU's; pages that cross the bus."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

from ops.gpu_survey.carried import ROOT
from ops.gpu_survey.survey import Survey

_TESTS = ROOT / "tests" / "gpu"
# Neither the project's settings nor the fixtures for servers: their plugins need not be there.
_OPTIONS = (
    "-c", "/dev/null", f"--confcutdir={_TESTS}", "--import-mode=importlib", "-p", "no:cacheprovider",
    "-p", "no:randomly", "-q", "--tb=short", "-W", "ignore::pytest.PytestUnknownMarkWarning",
)  # fmt: skip


def graphs(survey: Survey) -> None:
    _run(survey, "test_graphs_on_cuda.py")


def engines(survey: Survey) -> None:
    _run(survey, "test_engine_on_cuda.py")


def swaps(survey: Survey) -> None:
    _run(survey, "test_host_swap_on_cuda.py")


def _run(survey: Survey, file: str) -> None:
    survey.need_cuda()
    survey.attempt(file, partial(_pytest, file))


def _pytest(file: str) -> str:
    if find_spec("pytest") is None:
        return "not run: there is no pytest"
    command = [sys.executable, "-m", "pytest", str(_TESTS / file), *_OPTIONS]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(finished.stdout)
    lines = (finished.stdout.strip() or "nothing printed").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if not finished.returncode:
        return lines[-1]
    if "NULL_GPU" in os.environ:  # where every token is 0
        return f"{lines[-1]}; nothing is compared on the null GPU"
    raise AssertionError("; ".join([lines[-1], *failed]))
