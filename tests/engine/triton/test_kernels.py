"""Runs the checks beside it in processes of their own: whether Triton interprets is
settled when it is imported, and other tests of this process may have done that already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

pytest.importorskip("triton")


@pytest.mark.timeout(1200)  # on a GPU each case is compiled
@pytest.mark.parametrize(
    ("checks", "least"),
    [
        ("kernels.py", 40),
        ("shared_kernels.py", 25),
        ("static_kernels.py", 8),
        ("flash_kernels.py", 3),
        ("shared_tokens.py", 1),
        ("checked_kernels.py", 2),
    ],
)
def test_the_kernels_compute_attention(checks: str, least: int) -> None:
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    file = Path(__file__).with_name(checks)
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", str(file), "-p", "no:cacheprovider", "--tb=short"],
        env=os.environ | interpreted,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed
    assert int(passed[1]) > least
