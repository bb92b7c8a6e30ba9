"""The benchmarks are no package of the distribution: they are found from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.models.checkpoints import build
from support.models.spelling import spelling_checkpoint

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that computes in milliseconds."""
    return build("llama", tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose tokens spell any text."""
    return spelling_checkpoint(tmp_path_factory.mktemp("spelling"))
