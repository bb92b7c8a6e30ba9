"""Runs interpreted_draws.py in a process of its own: see support.engine.interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton")

from support.engine.interpreted import passed

CHECKS = Path(__file__).with_name("interpreted_draws.py")


def test_the_kernel_draws() -> None:
    assert passed(CHECKS, marked="not slow") >= 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_kernel_draws_from_many_rows_and_large_vocabularies() -> None:
    assert passed(CHECKS, marked="slow") >= 10
