"""Activations of a vision tower by the compiled library: torch's GELU takes an eighth of a tile's time in
bfloat16, on a Xeon with AMX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers.activations import GELUTanh, QuickGELUActivation, SiLUActivation

from millstream_worker.engine.runner.linear.exchange import exchange
from millstream_worker.engine.runner.native.library import Library

_TWICE = 2 * math.sqrt(2 / math.pi)
# The factors of x and of x³ in x · σ(…).
GATES: Mapping[type[nn.Module], tuple[float, float]] = {
    GELUTanh: (_TWICE, 0.044715 * _TWICE),
    QuickGELUActivation: (1.702, 0.0),
    SiLUActivation: (1.0, 0.0),
    nn.SiLU: (1.0, 0.0),
}


class Gate(nn.Module):
    """Maps numbers of bfloat16 or float32 of any shape to as many, on the CPU, each by itself."""

    def __init__(self, library: Library, linear: float, cubic: float) -> None:
        super().__init__()
        self._library = library
        self._factors = linear, cubic

    def forward(self, numbers: Tensor) -> Tensor:
        given = numbers.contiguous()
        answer = torch.empty_like(given)
        addresses = given.data_ptr(), answer.data_ptr()
        self._library.gate[given.dtype](*addresses, given.numel(), *self._factors, torch.get_num_threads())
        return answer


def exchange_gates(model: nn.Module, library: Library) -> None:
    """Exchange the activations that the library computes. Numbers of a tower have one type throughout."""
    exchange(model, lambda _, layer: Gate(library, *GATES[type(layer)]) if type(layer) in GATES else None)
