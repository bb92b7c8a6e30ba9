"""Copies between host and device that no one waits for.

Pinned memory comes from torch's own ring of it: a piece is handed out again only when the copy that reads it
has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16  # bytes: what kernels may assume of a pointer


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, for what is launched after this. On the CPU it may share its memory."""
    array = np.ascontiguousarray(array)
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())  # torch's can be written to
    if device.type == "cuda":  # from pageable memory the copy would wait for the stream
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """The arrays on the device by one copy; as `to_device` otherwise."""
    if device.type != "cuda":
        return [to_device(array, device) for array in arrays]
    return packed(arrays, device)


def packed(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copies of the arrays, in one piece of the device's memory."""
    places = _places([array.nbytes for array in arrays])
    host = _host_bytes(places[-1], device)
    memory = host.numpy()
    for array, start in zip(arrays, places, strict=False):
        memory[start : start + array.nbytes] = _bytes_of(array)
    there = host.to(device, non_blocking=True)
    return [
        _part(there, start, array.shape, array.dtype) for array, start in zip(arrays, places, strict=False)
    ]


def to_host(tensor: Tensor) -> Tensor:
    """The tensor on the host: valid once an event recorded after this has passed, on the CPU at once."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def settle(device: torch.device) -> None:
    """Waits for a GPU. Raises its fault, if there is one: after that only another process can use it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True, slots=True)
class Field:
    """A vector of an `Arena`."""

    size: int
    dtype: type[np.generic] = np.int64
    blank: int = 0  # what stands beyond the values it was given


class Arena:
    """Vectors on the device that never move, all filled by one copy."""

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        blanks = [np.full(field.size, field.blank, field.dtype) for field in fields.values()]
        places = _places([blank.nbytes for blank in blanks])
        self._blank = np.zeros(places[-1], np.uint8)
        self._bytes = torch.empty(places[-1], dtype=torch.uint8, device=device)
        self._places = dict(zip(fields, zip(places, blanks, strict=False), strict=True))
        self._tensors = {}
        for name, (start, blank) in self._places.items():
            self._blank[start : start + blank.nbytes] = _bytes_of(blank)
            self._tensors[name] = _part(self._bytes, start, blank.shape, blank.dtype)
        self.fill()

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def fill(self, **arrays: NDArray[Any]) -> None:
        """Every vector becomes its array, of its size at most, and blank from there on."""
        host = _host_bytes(len(self._bytes), self._bytes.device)
        memory = host.numpy()
        memory[:] = self._blank
        for name, array in arrays.items():
            start, blank = self._places[name]
            assert len(array) <= len(blank), f"{len(array)} {name} do not fit into {len(blank)}"
            values = _bytes_of(array.astype(blank.dtype, copy=False))
            memory[start : start + len(values)] = values
        self._bytes.copy_(host, non_blocking=True)


def _places(sizes: Sequence[int]) -> list[int]:
    """Where parts of these sizes in bytes start, and after them the size of all."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return places


def _host_bytes(size: int, device: torch.device) -> Tensor:
    """From where copies to the device are made."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _part(memory: Tensor, start: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Tensor:
    size = int(np.prod(shape)) * dtype.itemsize
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    return memory[start : start + size].view(kind).view(*shape)
