"""Linear layers with the same input, fused into one product: query, key and value; gate and up.

Each call of a matrix kernel has a price of its own, whatever its size: on two EPYC cores one product in place
of query, key and value's three took 23 to 38 us less a layer, in place of gate and up's two 4 to 16 us: 1.5 %
(0.6B) to 6 % (15M) of a step of 32 rows. The model's anatomy names the layers.

All of them are fused, on every device and in every dtype: in float32 the same tokens are promised after a
restart, so a rule decides, not a measurement at start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from millstream_worker.engine.runner.linear.quantized_layers import QuantizedLinear, join_layers

Layer = nn.Linear | QuantizedLinear


def fuse(model: nn.Module, groups: Sequence[Sequence[str]]) -> None:
    """Fuses each group of linear layers, by their names, into one product. Beside the model there is never
    more than one group's weights."""
    for names in reversed(groups):
        _fuse(model, names)
        torch.cuda.empty_cache()  # else what was freed on a GPU would be missing for the next group


class _Product:
    """The product for the parts that have not been asked for it yet, and the rows that it is of."""

    __slots__ = ("answer", "rows")

    def __init__(self) -> None:
        self.rows: Tensor | None = None
        self.answer: Tensor | None = None


class FusedLinear(nn.Module):
    """One of the fused layers, [..., in_features] to [..., out_features]. It returns a view into the product
    of them all: the first to be called computes that, the last one lets go of it."""

    def __init__(self, joint: Layer, product: _Product, begin: int, size: int, *, last: bool) -> None:
        super().__init__()
        self.joint = joint
        self.begin = begin
        self.in_features = joint.in_features
        self.out_features = size
        self._product = product
        self._last = last

    @property
    def weight(self) -> Tensor:
        """Returns [out_features, in_features], for model code that does more with a layer than to call it."""
        return self.joint.weight.narrow(0, self.begin, self.out_features)

    @property
    def bias(self) -> Tensor | None:
        """[out_features]"""
        bias: Tensor | None = self.joint.bias
        return None if bias is None else bias.narrow(0, self.begin, self.out_features)

    def forward(self, rows: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # which computes equal operations once (`torch_internals`)
            joint: Tensor = self.joint(rows)
            return joint.narrow(-1, self.begin, self.out_features)
        product = self._product
        if product.rows is not rows or product.answer is None:
            product.rows, product.answer = rows, self.joint(rows)
        answer: Tensor = product.answer.narrow(-1, self.begin, self.out_features)
        if self._last:
            product.rows = product.answer = None
        return answer


@torch.no_grad()
def _fuse(model: nn.Module, names: Sequence[str]) -> None:
    layers = [cast(Layer, model.get_submodule(name)) for name in names]
    sizes = [layer.out_features for layer in layers]
    joint = _joint(layers).train(layers[0].training)
    product, begin = _Product(), 0
    for name, size in zip(names, sizes, strict=True):
        fused = FusedLinear(joint, product, begin, size, last=name is names[-1])
        model.set_submodule(name, fused.train(joint.training))
        begin += size


def _joint(layers: Sequence[Layer]) -> Layer:
    quantized = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    if quantized:
        return join_layers(quantized)
    first, outputs = layers[0], sum(layer.out_features for layer in layers)
    joint = nn.Linear(first.in_features, outputs, bias=first.bias is not None, device="meta")
    joint.weight = _joined([layer.weight for layer in layers])
    if first.bias is not None:
        joint.bias = _joined([layer.bias for layer in layers if layer.bias is not None])
    return joint


def _joined(parts: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat(parts), requires_grad=False)
