"""Linear layers that multiply the same rows, as one product: query, key and value; gate and up.

Each call of a matrix kernel has a price of its own, whatever its size: on two EPYC cores one product in place
of query, key and value's three took 23 to 38 us less a layer, in place of gate and up's two 4 to 16 us: 1.5 %
(0.6B) to 6 % (15M) of a step of 32 rows. Which layers belong together is not guessed from their names but
seen in a forward of one token: layers of one module that are called once each, with the same tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn


class Siblings:
    """Notes, while it is entered, which linear layers of a model are called with which tensor."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._calls: list[tuple[nn.Module, torch.Tensor]] = []  # the tensors live: no address is used twice
        self._hooks: list[Any] = []

    def __enter__(self) -> Siblings:
        for layer in self._model.modules():
            if type(layer) is nn.Linear:  # a subclass may compute something else
                self._hooks.append(layer.register_forward_pre_hook(self._note))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def merge(
        self,
        pays: Callable[[Sequence[nn.Linear]], bool] = lambda layers: True,
        freed: Callable[[], None] = lambda: None,
    ) -> int:
        """Have siblings for which it pays computed as one product each; `freed` is called when the weights of
        some were. Answers how many layers now are parts of others."""
        groups = [group for group in self._groups() if pays([place.layer for place in group])]
        self._calls.clear()
        merged = sum(len(group) for group in groups)
        while groups:
            _merge(groups.pop())  # its own weights are freed before the next ones are copied
            freed()
        return merged

    def _note(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._calls.append((layer, inputs[0]))

    def _groups(self) -> list[list[_Place]]:
        calls = Counter(layer for layer, _ in self._calls)
        holders: Counter[torch.Tensor] = Counter(
            parameter for module in self._model.modules() for parameter in module.parameters(recurse=False)
        )
        groups: dict[tuple[object, ...], list[_Place]] = {}
        places = _places(self._model)
        for layer, rows in self._calls:
            assert isinstance(layer, nn.Linear)
            place, weight = places.get(layer), layer.weight
            if place is not None and calls[layer] == 1 and holders[weight] == 1:
                alike = (place.parent, id(rows), weight.dtype, weight.device, layer.bias is None)
                groups.setdefault(alike, []).append(place)
        return [group for group in groups.values() if len(group) > 1]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A linear layer, where its model has it."""

    parent: nn.Module
    name: str
    layer: nn.Linear


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


def _places(model: nn.Module) -> dict[nn.Module, _Place]:
    """Where each linear layer is; those that are in two places are nowhere."""
    found = [
        _Place(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if type(layer) is nn.Linear and name
    ]
    times = Counter(place.layer for place in found)
    return {place.layer: place for place in found if times[place.layer] == 1}


@torch.no_grad()
def _merge(group: list[_Place]) -> None:
    layers = [place.layer for place in group]
    sizes = [layer.out_features for layer in layers]
    joint = nn.Linear(layers[0].in_features, sum(sizes), bias=layers[0].bias is not None, device="meta")
    joint.weight = _joined([layer.weight for layer in layers])
    if layers[0].bias is not None:
        joint.bias = _joined([layer.bias for layer in layers])
    joint.train(layers[0].training)
    held, begin = _Held(), 0
    for place, size in zip(group, sizes, strict=True):
        merged = MergedLinear(joint, held, begin, size, last=place is group[-1])
        setattr(place.parent, place.name, merged.train(joint.training))
        begin += size


def _joined(parts: list[torch.Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat(list(parts)), requires_grad=False)
