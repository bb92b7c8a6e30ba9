"""An attention backend with a seam: who records a step takes the layers' calls in place of the backend, and
makes them itself when the step is replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend


class Taker(Protocol):
    """Answers a layer's call as `AttentionBackend.attend` does."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, /
    ) -> Tensor: ...


class BreakableAttention:
    """`AttentionBackend` that passes its calls on, or hands them to who takes them for a while."""

    __slots__ = ("_taker", "backend")

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self._taker: Taker = backend.attend

    def begin(self, plan: Plan) -> None:
        self.backend.begin(plan)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self._taker(layer, query, key, value, sinks)

    def left_out(self) -> contextlib.AbstractContextManager[None]:
        """For a while every layer answers zeros and stores nothing."""
        return self.taken_by(_zeros)

    @contextlib.contextmanager
    def taken_by(self, taker: Taker) -> Iterator[None]:
        self._taker = taker
        try:
            yield
        finally:
            self._taker = self.backend.attend


def _zeros(layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
    return value.new_zeros(len(query), query.shape[1], value.shape[2])
