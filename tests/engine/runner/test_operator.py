"""Attention as an operation: it reaches the layer that was registered, and no compiler looks into it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from millstream_worker.engine.runner.attention.custom_op import ATTENTIONS, attend


class Layer:
    """Answers its own number, and notes what it was given."""

    def __init__(self, number: float) -> None:
        self._number = number
        self.sinks: list[Tensor | None] = []

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        self.sinks.append(sinks)
        return value.new_full((len(query), query.shape[1], value.shape[2]), self._number)


def step(tokens: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(tokens, 4, 8), torch.randn(tokens, 2, 8), torch.randn(tokens, 2, 6)


def test_each_number_finds_its_layer_and_hands_over_the_sinks() -> None:
    layers = [Layer(1.0), Layer(2.0)]
    numbers = [ATTENTIONS.register(layer) for layer in layers]
    sinks = torch.zeros(4)
    answers = [attend(*step(), given, number) for given, number in zip((sinks, None), numbers, strict=True)]
    assert [float(answer.mean()) for answer in answers] == [1.0, 2.0]
    assert [tuple(answer.shape) for answer in answers] == [(3, 4, 6)] * 2
    assert layers[0].sinks[0] is not None
    assert layers[1].sinks == [None]


def test_a_layer_that_is_gone_is_not_found() -> None:
    layer = Layer(1.0)
    number = ATTENTIONS.register(layer)
    del layer
    gc.collect()
    with pytest.raises(KeyError):
        attend(*step(), None, number)


def test_one_graph_serves_all_layers() -> None:
    layers = [Layer(1.0), Layer(2.0), Layer(3.0)]
    numbers = [ATTENTIONS.register(layer) for layer in layers]
    counter = CompileCounter()
    torch.compiler.reset()
    torch.compiler.set_stance("default")
    double = torch.compile(
        lambda number, *tensors: attend(*tensors, None, number) * 2,
        backend=counter,
        fullgraph=True,
        dynamic=True,
    )
    answers = [float(double(number, *step(tokens)).mean()) for tokens, number in enumerate(numbers, 11)]
    assert answers == [2.0, 4.0, 6.0]
    assert counter.frame_count == 1
