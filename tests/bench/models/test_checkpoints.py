"""Checkpoints in a precision that the processor computes, and the same model as a GGUF file."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import pytest
import torch
from ops.bench.models.checkpoints import checkpoint, shaped_checkpoint
from ops.bench.models.gguf_file import gguf_file
from ops.bench.models.shapes import TINY_14M
from ops.bench.models.size import size_of
from support.models import checkpoints
from support.models.checkpoints import build, plain
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 64, "head_dim": 4}
SMALL = {"small": TINY_14M | SIZES}


def test_a_shape_is_made_in_a_precision_the_cpu_computes(
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


def test_a_checkpoint_the_cpu_computes_badly_is_copied_once(
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


@pytest.mark.parametrize(("case", "head_dim"), [("llama", 8), ("qwen3", 128)])
def test_the_same_model_is_read_back(tmp_path: Path, case: str, head_dim: int) -> None:
    folder = build(case, tmp_path / "model", head_dim=head_dim)
    path = gguf_file(folder, tmp_path / "model.gguf")
    again = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    tokens = torch.arange(3, 40)[None]
    torch.testing.assert_close(again(tokens).logits, plain(folder)(tokens).logits)


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    path = gguf_file(build("llama", tmp_path / "model", dtype=torch.bfloat16), tmp_path / "model.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert kinds["blk.0.attn_q.weight"] == "BF16"
    assert kinds["blk.0.attn_norm.weight"] == "F32"
