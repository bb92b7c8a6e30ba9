"""Which attention backend a device gets."""

from __future__ import annotations

import torch

from millstream_worker.engine.runner.attention.interface import AttentionBackend
from millstream_worker.engine.runner.storage import KVStorage

NAMES = ("auto", "torch", "triton")


def choose(name: str, device: torch.device) -> str:
    """The backend's name for what was asked ("auto" or a name); ValueError if it cannot run on the device."""
    if name not in NAMES:
        raise ValueError(f"attention is {name!r}; it must be one of {', '.join(NAMES)}")
    if name == "auto":
        return "triton" if device.type == "cuda" else "torch"
    if name == "triton" and device.type != "cuda":
        raise ValueError(
            f"attention 'triton' needs a CUDA device, this is {device.type}; use 'torch' or 'auto'"
        )
    return name


def build(name: str, storage: KVStorage) -> AttentionBackend:
    """The backend called `name` (as `choose` gave it) over `storage`."""
    if name == "triton":
        from millstream_worker.engine.runner.attention.triton_backend import TritonAttention  # needs triton

        return TritonAttention(storage)
    from millstream_worker.engine.runner.attention.matmul import MatmulAttention

    return MatmulAttention(storage)
