"""Defines what every backend of recurrent states offers: one call per step, then one or two per module. It
knows modules by number and no model code."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan


class StateBackend(Protocol):
    """Built over one `StateStorage`; used by one runner, from one thread. Each segment of a step takes up the
    state of its slot where its tokens begin, and leaves there the one behind them. A token's numbers depend
    neither on how its row is cut into steps nor on the other rows; in plain PyTorch, their last bits do."""

    def begin(self, plan: Plan) -> None:
        """Take in the step, whose segments are of different slots."""

    def convolve(self, layer: int, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """inputs [T, channels] of any type; weight [channels, taps], bias [channels]. Returns the same shape
        and type."""
        ...

    def advance(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor
    ) -> Tensor:
        """query, key [T, key_heads, key_dim], value [T, heads, value_dim], log_decay g [T, heads] or
        [T, heads, key_dim], beta [T, heads]. Returns the shape and type of value."""
        ...
