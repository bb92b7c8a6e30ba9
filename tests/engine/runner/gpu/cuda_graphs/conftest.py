"""Recorded runners on the CPU."""

from __future__ import annotations

import pytest


@pytest.fixture
def attention_name() -> str:
    """Of torch's operations alone, as on a GPU: the stand-in for a recorder sees no others."""
    return "torch"
