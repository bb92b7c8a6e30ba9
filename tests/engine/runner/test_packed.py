"""Packed linear layers: what they answer, what they replace, and what they hold in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.checkpoints import logits, plain
from torch import nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner import packed
from millstream_worker.engine.runner.model import load_model
from millstream_worker.engine.runner.native.linear import PanelLinear
from millstream_worker.engine.runner.packed import PackedLinear, pack

CPU = torch.device("cpu")
TYPES = [
    pytest.param(
        dtype, marks=pytest.mark.skipif(not packed._can_pack(dtype), reason=f"no packed {dtype} here")
    )
    for dtype in (torch.float32, torch.bfloat16)
]


def layer(inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=bias).to(dtype).eval()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (33, 48), (64, 7), (128, 513)])
@torch.inference_mode()
def test_answers_what_linear_does(dtype: torch.dtype, bias: bool, inputs: int, outputs: int) -> None:
    linear, atol = layer(inputs, outputs, dtype, bias=bias), 1e-5 if dtype == torch.float32 else 2e-2
    replacement = PackedLinear(linear.weight, linear.bias)
    for shape in ((inputs,), (0, inputs), (1, inputs), (5, inputs), (2, 3, inputs), (1, 70, inputs)):
        rows = torch.randn(shape).to(dtype)
        torch.testing.assert_close(replacement(rows), linear(rows), atol=atol, rtol=1e-2)
    strided = torch.randn(3, 2, inputs).to(dtype).transpose(0, 1)
    torch.testing.assert_close(replacement(strided), replacement(strided.contiguous()))
    assert torch.equal(replacement.weight, linear.weight)


@pytest.mark.parametrize("dtype", TYPES)
def test_replaces_every_kind_and_frees_the_weights(dtype: torch.dtype) -> None:
    class Scaled(nn.Linear):
        """Computes something else."""

    conv = Conv1D(12, 8).to(dtype)
    inner = nn.ModuleDict({"linear": layer(8, 8, dtype), "conv": conv, "scaled": Scaled(8, 8)})
    model = nn.Sequential(nn.Embedding(4, 8), inner, layer(8, 4, dtype))
    kept = inner["linear"]
    rows = torch.randn(3, 8).to(dtype)
    want = conv(rows)

    assert pack(model) == 3

    assert isinstance(inner["linear"], PackedLinear)
    assert isinstance(inner["scaled"], Scaled)
    assert getattr(kept, "weight", None) is None
    torch.testing.assert_close(inner["conv"](rows), want, atol=2e-2, rtol=1e-2)
    assert sum(weight.numel() for weight in model.parameters()) == 32 + 72 + 108 + 72 + 36


def test_a_tied_embedding_keeps_its_weight_and_a_shared_layer_stays_shared() -> None:
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    shared = nn.Linear(8, 8)
    model = nn.ModuleList([embedding, nn.Sequential(shared), nn.Sequential(shared), head])

    assert pack(model) == 2

    assert model[1][0] is model[2][0]
    assert torch.equal(model[0].weight, model[3].weight)


def test_what_cannot_be_packed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8).to(torch.float64), nn.Linear(8, 8, device="meta"))
    assert pack(model) == 0
    assert [type(part) for part in model] == [nn.Linear, nn.Linear]

    packed._can_pack.cache_clear()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    other = nn.Sequential(nn.Linear(8, 8))
    assert pack(other) == 0
    assert type(other[0]) is nn.Linear
    packed._can_pack.cache_clear()


@pytest.mark.parametrize("case", ["llama-llama3", "gpt2", "minicpm3", "jetmoe"])
def test_loaded_models_are_packed_and_their_figures_are_the_models(
    case: str, checkpoint: Callable[[str], Path]
) -> None:
    loaded = load_model(str(checkpoint(case)), dtype=torch.float32, device=CPU)
    model = plain(checkpoint(case))
    assert loaded.parameters == sum(weight.numel() for weight in model.parameters())
    assert loaded.vocab_size == logits(model, [3]).shape[1]
    kinds = {type(module) for module in loaded.model.modules()}
    assert kinds & {PackedLinear, PanelLinear}
    assert not kinds & {nn.Linear, Conv1D}
