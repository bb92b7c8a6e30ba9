"""Consecutive layers that run as one call: the first computes them all, the others pass on what they get.

To enter compiled code costs about 70 us, whatever is in it: a 135M model, with 30 layers entered one by one,
spent 2 ms of a step there, of 12 with one row. Layers are put together where each hands its answer, and
nothing else, to the next, and all get the same arguments beside it; that is seen in a forward, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from millstream_worker.engine.runner.calls import Call, calls_of

_LONGEST = 8  # layers: the code of all of them is compiled


class Stretch(nn.Module):
    """Some layers of a model, one after the other."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        for layer in self.layers:
            hidden = type(layer).forward(layer, hidden, *args, **options)
        return hidden


def stretches(layers: Sequence[nn.Module], run: Callable[[], object]) -> list[Sequence[nn.Module]]:
    """`layers`, cut into stretches of one length; `run` computes the model once."""
    calls = [call for _, call in calls_of(layers, run)]
    length = 1
    if len(calls) == len(layers) and all(map(_goes_on_in, calls, calls[1:])):
        length = max(size for size in range(1, _LONGEST + 1) if len(layers) % size == 0)
    return [layers[start : start + length] for start in range(0, len(layers), length)]


def pass_on(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """In place of the layers that an earlier one has computed."""
    return hidden


def _goes_on_in(call: Call, other: Call) -> bool:
    if not (call.args and other.args and isinstance(call.answer, torch.Tensor)):
        return False
    own, others = (call.args[1:], call.options), (other.args[1:], other.options)
    return call.answer is other.args[0] and _same(own, others)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(one[k], other[k]) for k in one)
        )
    return one is other or (
        isinstance(one, (bool, int, float, str)) and type(one) is type(other) and one == other
    )
