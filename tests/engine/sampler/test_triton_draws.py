"""Runs interpreted_draws.py in a process of its own: if Triton interprets is settled when it is imported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")


def run(marked: str) -> int:
    """Returns how many checks have passed. None fails."""
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = Path(__file__).with_name("interpreted_draws.py")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-m", marked, "-p", "no:cacheprovider", "--tb=short"],
        env=os.environ | interpreted,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed
    return int(passed[1])


def test_the_kernel_draws() -> None:
    assert run("not slow") >= 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_kernel_draws_from_many_rows_and_large_vocabularies() -> None:
    assert run("slow") >= 10
