"""In which precision a model is computed."""

from __future__ import annotations

import torch

from millstream_worker.engine.runner.device import torch_internals

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computed_in(own: torch.dtype | None, device: torch.device) -> torch.dtype:
    """A checkpoint's own, or float32 where it has none, or the device computes that badly."""
    if own is None or own not in DTYPES.values() or (device.type == "cpu" and not _cpu_has(own)):
        return torch.float32
    return own


def _cpu_has(dtype: torch.dtype) -> bool:
    if dtype != torch.bfloat16:
        return dtype == torch.float32
    return torch_internals.multiplies_bfloat16()
