"""Who records: what was asked for, and what the device has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.models import checkpoints

from millstream_worker.engine.assembly import build
from millstream_worker.engine.process import CannotLoad
from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.cuda_graphs.recording import wanted

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_what_was_asked_for_on_what_device() -> None:
    assert wanted("auto", CUDA)
    assert wanted("on", CUDA)
    assert not wanted("off", CUDA)
    assert not wanted("auto", CPU)
    assert not wanted("off", CPU)


def test_a_device_without_graphs_and_an_unknown_word_are_refused() -> None:
    with pytest.raises(ValueError, match="'on' needs a CUDA device, this is cpu"):
        wanted("on", CPU)
    with pytest.raises(ValueError, match="'yes'; it must be one of auto, on, off"):
        wanted("yes", CUDA)


def test_the_engine_says_so(tmp_path: Path) -> None:
    folder = checkpoints.build("llama", tmp_path)
    config = EngineConfig(str(folder), device="cpu", kv_memory="1MiB", cuda_graphs="on")
    with pytest.raises(CannotLoad, match="cuda_graphs 'on' needs a CUDA device"):
        build(config, lambda _: None)
