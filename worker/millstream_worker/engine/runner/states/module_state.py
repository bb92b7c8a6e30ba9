"""Brings what a module hands to its functions into the form that states take. This code is compiled with the
module's, and replayed without Python."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from torch import Tensor
from torch.nn import functional

from millstream_worker.engine.runner.states.state_backend import LayerStates


class MarkedStates:
    """Calls `mark` with each step of a module with these states."""

    def __init__(self, states: LayerStates, mark: Callable[[], None]) -> None:
        self._states = states
        self._mark = mark
        self.advance = states.advance

    def convolve(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self._mark()
        return self._states.convolve(inputs, weight, bias)


class BackedState:
    """The `ModuleState` of a module with these states."""

    def __init__(self, states: LayerStates) -> None:
        self._states = states

    def convolve(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        channels, dtype = inputs[0].t(), inputs.dtype
        if channels.stride(1) != 1:
            channels = channels.contiguous()
        bias = None if bias is None else bias.to(dtype)
        return self._states.convolve(channels, weight.to(dtype).contiguous(), bias).t()[None]

    def advance(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        return self._advance(query[0], key[0], value[0], g[0], beta[0])[None], None

    def scan(
        self,
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, inf),
        **options: Any,
    ) -> Tensor:
        if dt_bias is not None:
            dt = dt + dt_bias.to(dt.dtype)
        if dt_softplus:
            dt = functional.softplus(dt)
        rate = dt.clamp(*dt_limit)[0].float()
        query, key, value = (one[0].float() for one in (C, B, x))
        answer = self._advance(query, key, value, A.float() * rate, rate)
        return (answer if D is None else answer + D[:, None] * value)[None]

    def _advance(self, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor) -> Tensor:
        query, key, value = (_side_by_side(heads.to(value.dtype)) for heads in (query, key, value))
        return self._states.advance(
            query, key, value, log_decay.float().contiguous(), beta.float().contiguous()
        )


def _side_by_side(heads: Tensor) -> Tensor:
    """[T, heads, dim], of which a token's numbers lie side by side."""
    return heads if heads.stride()[1:] == (heads.shape[2], 1) else heads.contiguous()
