"""Layers that run as one: which may, and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from millstream_worker.engine.runner.stretches import Stretch, pass_on, stretches


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: torch.Tensor, shift: Any = None, **options: Any) -> Any:
        return hidden + self.linear(hidden) + (0 if shift is None else shift)


class Model(nn.Module):
    """`between`: what it does with a layer's answer before the next gets it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(4) for _ in range(layers))
        self.shifts: list[Any] = [torch.ones(4)] * layers
        self.between: Callable[[torch.Tensor], torch.Tensor] = lambda hidden: hidden

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer, shift in zip(self.layers, self.shifts, strict=True):
            hidden = self.between(layer(hidden, shift, mode=("one", 1)))
        return hidden


def lengths(model: Model) -> list[int]:
    return [len(one) for one in stretches(list(model.layers), lambda: model(torch.ones(1, 4)))]


@pytest.mark.parametrize(
    ("layers", "found"), [(1, [1]), (2, [2]), (8, [8]), (9, [3, 3, 3]), (11, [1] * 11), (28, [7] * 4)]
)
def test_all_of_one_length(layers: int, found: list[int]) -> None:
    """Another length would be compiled for itself."""
    assert lengths(Model(layers)) == found


def test_layers_that_get_arguments_of_their_own_are_left() -> None:
    model = Model(4)
    model.shifts = [torch.ones(4) for _ in range(4)]
    assert lengths(model) == [1] * 4
    model.shifts = [None, None, None, 1.0]
    assert lengths(model) == [1] * 4


def test_a_model_that_does_something_in_between() -> None:
    model = Model(4)
    model.between = lambda hidden: hidden * 2
    assert lengths(model) == [1] * 4


def test_layers_that_are_not_called_once_each() -> None:
    model = Model(4)
    assert [len(one) for one in stretches(list(model.layers), lambda: None)] == [1] * 4


@torch.no_grad()
def test_the_first_computes_all_and_the_others_pass_on() -> None:
    model, rows = Model(6), torch.randn(3, 4)
    want = model(rows)
    for together in stretches(list(model.layers), lambda: model(rows)):
        first, *others = together
        vars(first)["forward"] = Stretch(together).forward
        for layer in others:
            vars(layer)["forward"] = pass_on
    torch.testing.assert_close(model(rows), want)
