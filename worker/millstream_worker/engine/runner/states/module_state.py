"""Connects the functions that a module calls to the backend of its states."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from torch import Tensor
from torch.nn import functional

from millstream_worker.engine.runner.states.state_backend import StateBackend


class BackedState:
    """The `ModuleState` of the backend's module number `layer`. `mark` is called with each step."""

    def __init__(self, backend: StateBackend, layer: int, mark: Callable[[], None]) -> None:
        self._backend = backend
        self._layer = layer
        self._mark = mark

    def convolve(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        self._mark()
        return self._backend.convolve(self._layer, inputs[0].t(), weight, bias).t()[None]

    def advance(
        self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any
    ) -> tuple[Tensor, None]:
        answer = self._backend.advance(self._layer, query[0], key[0], value[0], g[0], beta[0])
        return answer[None], None

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
        answer = self._backend.advance(self._layer, query, key, value, A.float() * rate, rate)
        return (answer if D is None else answer + D[:, None] * value)[None]
