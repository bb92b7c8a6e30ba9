"""Offers what advances a module's states as operations of torch, which a compiler calls and does not look
into."""

from __future__ import annotations

import torch
from torch import Tensor

from millstream_worker.engine.runner.native.custom_ops import Numbered, define
from millstream_worker.engine.runner.states.state_backend import LayerStates

LAYER_STATES: Numbered[LayerStates] = Numbered()


class TracedStates:
    """The `LayerStates` for which `layer` stands. That operations change states is not declared: nothing else
    in a compiled layer sees the storage."""

    def __init__(self, layer: Tensor) -> None:
        self._layer = layer

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        answer: Tensor = torch.ops.millstream.convolve.default(inputs, weight, bias, self._layer)
        return answer

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        given = query, key, value, log_decay, beta, self._layer
        answer: Tensor = torch.ops.millstream.advance.default(*given)
        return answer


define(
    "convolve(Tensor inputs, Tensor weight, Tensor? bias, Tensor layer) -> Tensor",
    lambda inputs, weight, bias, layer: LAYER_STATES[layer].convolve(inputs, weight, bias),
    lambda inputs, weight, bias, layer: inputs.new_empty(inputs.shape),
)
define(
    "advance(Tensor query, Tensor key, Tensor value, Tensor log_decay, Tensor beta, Tensor layer) -> Tensor",
    lambda query, key, value, log_decay, beta, layer: LAYER_STATES[layer].advance(
        query, key, value, log_decay, beta
    ),
    lambda query, key, value, log_decay, beta, layer: value.new_empty(value.shape),
)
