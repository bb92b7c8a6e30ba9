"""In which precision a model is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from millstream_worker.engine.runner.device.torch_internals import multiplies_bfloat16

if TYPE_CHECKING:
    from millstream_worker.engine.runner.gpu.gpu import Gpu

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computed_in(own: torch.dtype | None, gpu: Gpu | None) -> torch.dtype:
    """Returns a checkpoint's own dtype, or float32 where it has none or the device computes that badly.
    `gpu`: None on the CPU."""
    if own == torch.bfloat16:
        good = multiplies_bfloat16() if gpu is None else gpu.runs_our_kernels
        return own if good else torch.float32
    return torch.float16 if own == torch.float16 and gpu is not None else torch.float32
