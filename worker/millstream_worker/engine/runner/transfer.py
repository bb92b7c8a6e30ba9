"""Copies between host and device that no one waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, for what is launched after this. On the CPU it may share its memory."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":  # from pageable memory the copy would wait for the stream
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """The tensor on the host: valid once an event recorded after this has passed, on the CPU at once."""
    if tensor.device.type != "cuda":
        return tensor
    host = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
