"""Tokenizers of the counting model: token i is the word `w<i>`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.counting_worker import write_tokenizer


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("chat-tokenizer"), chat=True)
