"""Checkpoints that are made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from ops.bench.models.checkpoints import checkpoint, shaped_checkpoint
from ops.bench.models.shapes import TINY_14M
from ops.bench.models.size import size_of
from support.models import checkpoints
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 4}
SMALL = {"small": TINY_14M | SIZES}


def test_one_whose_writing_was_interrupted_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def interrupted(model: PreTrainedModel, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half of")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "save_pretrained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shaped_checkpoint("small", shapes=SMALL)
    folder = shaped_checkpoint("small", shapes=SMALL)
    assert (folder / "model.safetensors").stat().st_size > 1000
    assert AutoConfig.from_pretrained(folder).hidden_size == 16
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert shaped_checkpoint("small", shapes=SMALL) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_shape_is_made_in_a_precision_that_the_processor_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dtypes, read = {}, []
    for computes in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda answer=computes: answer)
        folder = shaped_checkpoint("small", shapes=SMALL)
        dtypes[folder.name] = (AutoConfig.from_pretrained(folder).dtype, size_of(folder).dtype)
        read.append(size_of(folder).weight_bytes)
    assert read[0] == read[1], "the same numbers: nobody has to read more of them"
    assert dtypes == {
        "small": (torch.bfloat16, "bfloat16"),
        "small-as-float32": (torch.float32, "float32"),
    }


def test_a_checkpoint_that_the_processor_computes_badly_is_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    own = checkpoints.build("llama", tmp_path / "own")
    assert checkpoint(str(own)) == own, "it is in float32 already"
    model = AutoModelForCausalLM.from_pretrained(own).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    (tmp_path / "half" / "tokenizer_config.json").write_text("{}")
    copy = checkpoint(str(tmp_path / "half"))
    assert (copy / "tokenizer_config.json").read_text() == "{}"
    assert AutoConfig.from_pretrained(copy).dtype == torch.float32
    copied = AutoModelForCausalLM.from_pretrained(copy).state_dict()
    assert all(torch.equal(copied[name].bfloat16(), tensor) for name, tensor in model.state_dict().items())
    written = (copy / "model.safetensors").stat().st_mtime_ns
    assert checkpoint(str(tmp_path / "half")) == copy
    assert (copy / "model.safetensors").stat().st_mtime_ns == written
    os.utime(tmp_path / "half" / "model.safetensors")
    assert checkpoint(str(tmp_path / "half")) != copy, "it may be another"
