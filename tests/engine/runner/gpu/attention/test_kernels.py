"""Runs the checks of Triton's kernels in processes of their own: see support.engine.interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from support.engine.interpreted import passed

DRAWS = "../sampling/interpreted_draws.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a GPU each case is compiled
@pytest.mark.parametrize(
    ("checks", "least"),
    [
        (("kernels.py", "int8_kernels.py"), 55),
        (("shared_kernels.py", "static_kernels.py", "shared_tokens.py", DRAWS), 70),
    ],
)
def test_the_kernels_compute_what_others_do(checks: tuple[str, ...], least: int) -> None:
    assert passed(*(Path(__file__).parent / name for name in checks)) >= least
