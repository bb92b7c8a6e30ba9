"""A GGUF file holds the same model: transformers reads it back and computes the same."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from ops.bench.models.gguf_file import NotConvertible, gguf_file
from support.models.checkpoints import build, plain
from transformers import AutoModelForCausalLM


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


def test_it_is_written_once(tmp_path: Path) -> None:
    folder = build("llama", tmp_path / "model")
    path = gguf_file(folder, tmp_path / "model.gguf")
    path.write_bytes(b"kept")
    assert gguf_file(folder, path).read_bytes() == b"kept"


def test_another_architecture_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match=r"gemma2.*--gguf"):
        gguf_file(build("gemma2", tmp_path / "model"), tmp_path / "model.gguf")
