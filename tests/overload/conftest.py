"""Tokenizers and gates of the counting model, as for the worker's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.counting_worker import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder: while it has a file `N`, no row draws its output token number N (from 0)."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder
