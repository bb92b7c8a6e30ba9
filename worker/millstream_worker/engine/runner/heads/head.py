"""Defines the part of a model after its body."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Head(Protocol):
    """Answers for some places of a step. It is compiled and recorded together with the body on the CPU, where
    steps are padded: an answer must not depend on wanted places after its own, nor on tokens after those."""

    def __call__(self, hidden: Tensor, wanted: Tensor | None) -> Tensor:
        """Returns [L, size] of hidden states [T, width] at the places `wanted` [L], int64; None: at all of
        them, in order."""
        ...
