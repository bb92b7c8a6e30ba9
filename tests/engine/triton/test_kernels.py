"""Runs the checks in kernels.py in a process of their own: whether Triton interprets is settled when it is
imported, and other tests of this process may have done that already."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")


def test_the_kernels_compute_attention() -> None:
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    checks = Path(__file__).with_name("kernels.py")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", str(checks), "-p", "no:cacheprovider", "--tb=short"],
        env=os.environ | interpreted,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed
    assert int(passed[1]) > 40
