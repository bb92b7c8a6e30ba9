"""Which linear layers are replaced, and what is left of those that were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.models.checkpoints import logits, plain
from torch import nn
from transformers.pytorch_utils import Conv1D

from millstream_worker.engine.runner.linear.panel import PanelLinear
from millstream_worker.engine.runner.linear.replace import replace_linear_layers
from millstream_worker.engine.runner.model.attention_choice import choose
from millstream_worker.engine.runner.model.load import load_model
from millstream_worker.engine.runner.native.library import Library

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture
def used() -> Library:
    library = choose("auto", CPU, torch.float32, "").library
    if library is None or library.panels is None:
        pytest.skip("needs a library that multiplies")
    return library


@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_replaces_every_kind_and_frees_the_weights(dtype: torch.dtype, used: Library) -> None:
    class Scaled(nn.Linear):
        """Computes something else."""

    conv = Conv1D(12, 8).to(dtype)
    kept = nn.Linear(8, 8)
    inner = nn.ModuleDict({"linear": kept, "conv": conv, "scaled": Scaled(8, 8)})
    model = nn.Sequential(nn.Embedding(4, 8), inner, nn.Linear(8, 4)).to(dtype)
    rows = torch.randn(3, 8).to(dtype)
    want = conv(rows)

    assert replace_linear_layers(model, used)[0].startswith("linear layers: 3 native")

    assert isinstance(inner["linear"], PanelLinear)
    assert isinstance(inner["scaled"], Scaled)
    assert getattr(kept, "weight", None) is None
    torch.testing.assert_close(inner["conv"](rows), want, atol=2e-2, rtol=1e-2)


def test_tied_weights_stay_tied_and_shared_layers_stay_shared(used: Library) -> None:
    embedding, head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    shared = nn.Linear(8, 8)
    model = nn.ModuleList([embedding, nn.Sequential(shared), nn.Sequential(shared), head])

    assert replace_linear_layers(model, used) == ("linear layers: 2 native",)

    assert model[1][0] is model[2][0]
    assert torch.equal(model[0].weight, model[3].weight)


def test_what_the_library_does_not_multiply_stays(used: Library) -> None:
    model = nn.Sequential(nn.Linear(8, 8).to(torch.float64), nn.Linear(8, 8, device="meta"))
    assert replace_linear_layers(model, used) == ("linear layers: 2 torch",)
    assert [type(part) for part in model] == [nn.Linear, nn.Linear]

    other = nn.Sequential(nn.Linear(8, 8))
    assert replace_linear_layers(other, None) == ("linear layers: 1 torch",)
    assert type(other[0]) is nn.Linear


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("case", ["llama-llama3", "gpt2", "minicpm3", "jetmoe"])
def test_loaded_models_figures_are_the_models(case: str, checkpoint: Callable[[str], Path]) -> None:
    loaded = load_model(str(checkpoint(case)), dtype=torch.float32, device=CPU)
    model = plain(checkpoint(case))
    assert loaded.parameters == sum(weight.numel() for weight in model.parameters())
    assert loaded.vocab_size == logits(model, [3]).shape[1]
    kinds = {type(module) for module in loaded.model.modules()}
    assert PanelLinear in kinds
    assert not kinds & {nn.Linear, Conv1D}
    assert any(note.startswith("linear layers: ") for note in loaded.notes)
