"""Defines what every backend of recurrent states offers: one call per step, then one or two per module. It
knows modules by number and no model code."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LayerStates(Protocol):
    """The states of one module."""

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """inputs [T, channels] of any type; weight [channels, taps], bias [channels]. Returns the same shape
        and type, contiguous."""
        ...

    def advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        """query, key [T, key_heads, key_dim], value [T, heads, value_dim], of one type, a token's numbers
        side by side; log_decay g [T, heads] or [T, heads, key_dim], beta [T, heads], both float32 and
        contiguous. Returns the shape and type of value, contiguous."""
        ...


class StateBackend(Protocol):
    """Built over one `StateStorage`; used by one runner, from one thread. Each row of a step takes up the
    state of its slot where its tokens begin, and leaves there the one behind them, or before them if they are
    held. A token's numbers depend neither on how its row is cut into steps nor on the other rows; in plain
    PyTorch, their last bits do."""

    def begin(self) -> None:
        """Take in the step that has begun in the storage."""

    def layer(self, number: int) -> LayerStates:
        """Returns the states of the model's module of this number."""
        ...
