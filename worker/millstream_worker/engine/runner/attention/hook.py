"""Wraps an attention backend so that a recorder can intercept attend() while a step is recorded or
replayed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor

from millstream_worker.engine.brain.batch.plan import Plan
from millstream_worker.engine.runner.attention.interface import AttentionBackend

# Takes a layer's number, queries, keys, values and sinks; returns what `AttentionBackend.attend` does.
AttentionHook = Callable[[int, Tensor, Tensor, Tensor, Tensor | None], Tensor]


class HookableAttention:
    """`AttentionBackend` that passes its calls on, or for a while to a hook."""

    __slots__ = ("_hook", "backend")

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self._hook: AttentionHook = backend.attend

    def begin(self, plan: Plan) -> None:
        self.backend.begin(plan)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self._hook(layer, query, key, value, sinks)

    def left_out(self) -> contextlib.AbstractContextManager[None]:
        """For a while every layer answers zeros and stores nothing."""
        return self.hooked(_zeros)

    @contextlib.contextmanager
    def hooked(self, hook: AttentionHook) -> Iterator[None]:
        self._hook = hook
        try:
            yield
        finally:
            self._hook = self.backend.attend


def _zeros(layer: int, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
    return value.new_zeros(len(query), query.shape[1], value.shape[2])
