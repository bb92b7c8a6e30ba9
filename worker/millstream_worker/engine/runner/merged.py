"""Linear layers that multiply the same rows, as one product: query, key and value; gate and up.

Each call of a matrix kernel has a price of its own, whatever its size: on two EPYC cores one product in place
of query, key and value's three took 23 to 38 us less a layer, in place of gate and up's two 4 to 16 us: 1.5 %
(0.6B) to 6 % (15M) of a step of 32 rows. Which layers belong together the model's anatomy says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn


def merge(
    model: nn.Module,
    groups: Sequence[Sequence[str]],
    pays: Callable[[Sequence[nn.Linear]], bool] = lambda layers: True,
    freed: Callable[[], None] = lambda: None,
) -> int:
    """Have the groups of linear layers with these names, for which it pays, computed as one product each;
    `freed` is called when the weights of a group were. Returns how many layers now are parts of others."""
    chosen = [names for names in groups if pays(_layers(model, names))]
    for names in reversed(chosen):
        _merge(model, names)  # its own weights are freed before the next ones are copied
        freed()
    return sum(map(len, chosen))


class _Held:
    """The product for the parts that have not been asked for it yet, and the rows that it is of."""

    __slots__ = ("answer", "rows")

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None
        self.answer: torch.Tensor | None = None


class MergedLinear(nn.Module):
    """What one of the layers computed: [..., in_features] to [..., out_features], a view into the product of
    them all. The first to be called computes it, the last one lets go of it."""

    def __init__(self, joint: nn.Linear, held: _Held, begin: int, size: int, *, last: bool) -> None:
        super().__init__()
        self.joint = joint
        self.begin = begin
        self.in_features = joint.in_features
        self.out_features = size
        self._held = held
        self._last = last

    @property
    def weight(self) -> torch.Tensor:
        """[out_features, in_features], for model code that does more with a layer than to call it."""
        return self.joint.weight.narrow(0, self.begin, self.out_features)

    @property
    def bias(self) -> torch.Tensor | None:
        """[out_features]"""
        bias: torch.Tensor | None = self.joint.bias
        return None if bias is None else bias.narrow(0, self.begin, self.out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        held = self._held
        if held.rows is not rows or held.answer is None:
            held.rows, held.answer = rows, self.joint(rows)
        answer: torch.Tensor = held.answer.narrow(-1, self.begin, self.out_features)
        if self._last:
            held.rows = held.answer = None
        return answer


def _layers(model: nn.Module, names: Sequence[str]) -> list[nn.Linear]:
    return [cast(nn.Linear, model.get_submodule(name)) for name in names]


@torch.no_grad()
def _merge(model: nn.Module, names: Sequence[str]) -> None:
    layers = _layers(model, names)
    sizes = [layer.out_features for layer in layers]
    joint = nn.Linear(layers[0].in_features, sum(sizes), bias=layers[0].bias is not None, device="meta")
    joint.weight = _joined([layer.weight for layer in layers])
    if layers[0].bias is not None:
        joint.bias = _joined([layer.bias for layer in layers])
    joint.train(layers[0].training)
    held, begin = _Held(), 0
    for name, size in zip(names, sizes, strict=True):
        merged = MergedLinear(joint, held, begin, size, last=name is names[-1])
        model.set_submodule(name, merged.train(joint.training))
        begin += size


def _joined(parts: list[torch.Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat(list(parts)), requires_grad=False)
