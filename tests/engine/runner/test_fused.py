"""Fused linear layers: which are fused, that each still answers its own, and what stays in memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from millstream_worker.engine.runner.linear.fused import FusedLinear, fuse
from millstream_worker.engine.runner.model.anatomy import calls_of, siblings_of
from millstream_worker.engine.runner.model.load import load_model


class Attention(nn.Module):
    """Three layers with the same rows, one with others."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, size, bias=bias) for size in (6, 4, 3))
        self.out = nn.Linear(13, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.q(rows), self.k(rows), self.v(rows)], dim=-1))


def fuse_seen(model: nn.Module) -> set[str]:
    """The layers that are fused then."""
    with torch.no_grad(), calls_of(model) as calls:
        model(torch.randn(1, 8))
    fuse(model, siblings_of(model, calls))
    return fused(model)


def fused(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, FusedLinear)}


@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_each_answers_what_it_did(bias: bool) -> None:
    model, rows = Attention(bias=bias), torch.randn(5, 8)
    want, weights = model(rows), [layer.weight.clone() for layer in (model.q, model.k, model.v)]

    assert fuse_seen(model) == {"q", "k", "v"}

    torch.testing.assert_close(model(rows), want)
    assert type(model.out) is nn.Linear
    for layer, weight in zip((model.q, model.k, model.v), weights, strict=True):
        assert isinstance(layer, FusedLinear)
        assert torch.equal(layer.weight, weight)
        assert (layer.bias is not None) is bias
    assert len({id(layer.joint) for layer in (model.q, model.k, model.v)}) == 1
    assert model.q._product.rows is None, "something is held between two steps"
    assert model.q._product.answer is None


@torch.no_grad()
def test_asked_in_another_way_than_when_it_was_seen() -> None:
    """Alone, twice, backwards, with rows of their own: slower, and right."""
    model = Attention()
    layers = {name: getattr(model, name) for name in "qkv"}
    fuse_seen(model)
    one, other = torch.randn(3, 8), torch.randn(2, 8)
    for name, rows in zip("vkqqkqv", (one, one, one, other, one, other, other), strict=True):
        torch.testing.assert_close(getattr(model, name)(rows), layers[name](rows))


class Scaled(nn.Linear):
    """Computes something else."""


@pytest.mark.parametrize("case", ["tied", "twice", "subclass", "bias", "dtype", "elsewhere"])
@torch.no_grad()
def test_what_does_not_belong_together_is_left(case: str) -> None:
    model = Attention()
    if case == "tied":
        model.head = nn.Embedding(4, 8)
        model.head.weight = model.k.weight
    elif case == "twice":
        model.register_forward_hook(lambda module, inputs, answer: answer + model.k(inputs[0]).sum())
    elif case == "subclass":
        model.k = Scaled(8, 4)
    elif case == "bias":
        model.k.bias = None
    elif case == "dtype":
        model.k = nn.Linear(8, 4, dtype=torch.float64)
        model.k.register_forward_pre_hook(lambda module, inputs: (inputs[0].double(),))
        model.k.register_forward_hook(lambda module, inputs, answer: answer.float())
    else:
        model.again = model.k
    rows = torch.randn(3, 8)
    want = model(rows)

    assert fuse_seen(model) == {"q", "v"}

    torch.testing.assert_close(model(rows), want)


@torch.no_grad()
def test_memory_is_given_back_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all parts and all products would be there at a time."""
    model = nn.ModuleDict({"one": Attention(), "other": Attention()})
    weights = [weakref.ref(layer.q.weight) for layer in (model["one"], model["other"])]
    alive: list[int] = []
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: alive.append(sum(weight() is not None for weight in weights))
    )
    fuse(model, [[f"{name}.{layer}" for layer in "qkv"] for name in model])
    assert alive == [1, 0]


@pytest.mark.parametrize(("case", "count"), [("llama", 5), ("qwen3", 5), ("phi3", 0), ("gpt2", 0)])
def test_models(case: str, count: int, checkpoint: Callable[[str], Path]) -> None:
    """Query, key, value, gate and up, where the model does not have them as one already."""
    loaded = load_model(str(checkpoint(case)), dtype=torch.float32, device=torch.device("cpu"))
    assert len(fused(loaded.model)) == count * loaded.model.config.num_hidden_layers
