"""Checkpoints that are made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.models.checkpoints import shaped_checkpoint
from ops.bench.models.shapes import SHAPES, TINY_14M
from transformers import AutoConfig, PreTrainedModel

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 4}


def test_one_whose_writing_was_interrupted_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SHAPES, "small", TINY_14M | SMALL)

    def interrupted(model: PreTrainedModel, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half of")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shaped_checkpoint("small")
    folder = shaped_checkpoint("small")
    assert (folder / "model.safetensors").stat().st_size > 1000
    assert AutoConfig.from_pretrained(folder).hidden_size == 16
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert shaped_checkpoint("small") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
