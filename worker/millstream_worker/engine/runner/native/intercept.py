"""Calls a kernel with outputs allocated by torch, or hands allocation and call to an interceptor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor


class CallInterceptor(Protocol):
    """Makes the calls itself."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor: ...

    def call(self, function: Any, tensors: Sequence[Tensor | None], numbers: Sequence[int]) -> None: ...


_interceptors: list[CallInterceptor] = []  # the last one is asked


def empty(like: Tensor, *shape: int) -> Tensor:
    """Memory for an answer of this shape, of the type of `like`."""
    return _interceptors[-1].empty(like, shape) if _interceptors else like.new_empty(shape)


def call(function: Any, tensors: Sequence[Tensor | None], *numbers: int) -> None:
    """`function` takes the addresses of the tensors, and then the numbers."""
    if _interceptors:
        _interceptors[-1].call(function, tensors, numbers)
    else:
        function(*[None if tensor is None else tensor.data_ptr() for tensor in tensors], *numbers)


@contextlib.contextmanager
def intercepted(interceptor: CallInterceptor) -> Iterator[None]:
    _interceptors.append(interceptor)
    try:
        yield
    finally:
        _interceptors.pop()
