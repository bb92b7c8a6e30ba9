"""Memory in which a recorded step keeps what it computes in between: it lies in the same places each time."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

_LINE = 64  # bytes: of cache, and what a vector may want to be aligned to


class Workspace:
    """Hands out tensors. The place of one that is gone goes to the next of its size: what is computed soon
    after lies in the caches already."""

    def __init__(self, size: int) -> None:
        """`size` in bytes, of which the system gives what is written to."""
        memory = np.empty(size + _LINE, np.uint8)
        start = -memory.ctypes.data % _LINE
        self._memory = memory[start : start + size]
        self.restart()

    def restart(self) -> None:
        """Begin anew; what was handed out before lies in the same memory."""
        self._used = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # by size

    def spoil(self) -> None:
        """Write what is no number over all that was handed out."""
        self._memory[: self._used] = 0xFF

    def holds(self, tensor: Tensor) -> bool:
        first = self._memory.ctypes.data
        return first <= tensor.data_ptr() < first + len(self._memory)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Raises MemoryError."""
        return self._take(prod(shape), dtype).view(*shape)

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Strides in elements. Raises MemoryError."""
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return self._take(last + 1, dtype).as_strided(shape, strides)

    def _take(self, elements: int, dtype: torch.dtype) -> Tensor:
        used = elements * dtype.itemsize
        size = max(1, -(-used // _LINE)) * _LINE
        free = self._free[size]
        start = free.pop() if free else self._grow(size)
        part = self._memory[start : start + used]
        weakref.finalize(part, free.append, start).atexit = False  # the tensor's storage holds it
        return torch.from_numpy(part).view(dtype)

    def _grow(self, size: int) -> int:
        start = self._used
        if start + size > len(self._memory):
            raise MemoryError(f"a step keeps more than {len(self._memory)} bytes")
        self._used += size
        return start
