"""Prompts that are far too long, on a small scale: all are refused, and the front is watched."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from ops.bench.pieces import giants
from support.models.tokenizers import build
from transformers import PreTrainedTokenizerFast

from millstream.cli.embedded.embedded_server import EmbeddedServer


@pytest.mark.slow
async def test_giants_are_refused_while_small_jobs_pass(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=build("byte-level")).save_pretrained(tmp_path / "model")
    options = argparse.Namespace(messages=2, tenants=2, tokenizer=tmp_path / "model", rest_s=0)
    with EmbeddedServer(tmp_path / "server") as server:
        figures = await giants.measure(server.url, "words", 512, options, characters=100_000)
    assert 20 < figures.idle <= figures.peak
    assert figures.waits_s
    assert figures.row.count("|") == 4
