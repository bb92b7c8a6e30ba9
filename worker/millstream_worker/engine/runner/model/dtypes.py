"""In which precision a model is computed."""

from __future__ import annotations

import torch

from millstream_worker.engine.runner.device.torch_internals import multiplies_bfloat16

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computed_in(own: torch.dtype | None, device: torch.device) -> torch.dtype:
    """A checkpoint's own, or float32 where it has none, or the device computes that badly."""
    if device.type == "cpu":
        return torch.bfloat16 if own == torch.bfloat16 and multiplies_bfloat16() else torch.float32
    return own if own is not None and own in DTYPES.values() else torch.float32
