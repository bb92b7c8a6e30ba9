"""Calls the library, its answers in memory of torch's; or leaves both, for a while, to a listener."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor


class Listener(Protocol):
    """Makes the calls itself."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor: ...

    def call(self, function: Any, tensors: Sequence[Tensor | None], numbers: Sequence[int]) -> None: ...


_listeners: list[Listener] = []  # the last one hears


def empty(like: Tensor, *shape: int) -> Tensor:
    """Memory for an answer of this shape, of the type of `like`."""
    return _listeners[-1].empty(like, shape) if _listeners else like.new_empty(shape)


def call(function: Any, tensors: Sequence[Tensor | None], *numbers: int) -> None:
    """`function` takes the addresses of the tensors, and then the numbers."""
    if _listeners:
        _listeners[-1].call(function, tensors, numbers)
    else:
        function(*[None if tensor is None else tensor.data_ptr() for tensor in tensors], *numbers)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
