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


def check_weights(weights: str, dtype: torch.dtype, device: torch.device, gpu: Gpu | None) -> None:
    """Raises ValueError for weights that the device does not multiply."""
    on_cpu = device.type == "cpu"
    if weights == "int8" and not on_cpu:
        raise ValueError(
            f"weights 'int8' are computed on the CPU, this is {device.type}; use 'fp8' or 'auto'"
        )
    if weights != "fp8":
        return
    if on_cpu:
        raise ValueError(f"weights 'fp8' are computed on a GPU, this is {device.type}; use 'int8' or 'auto'")
    if gpu is not None and not gpu.multiplies_float8:
        raise ValueError(
            f"weights 'fp8' need compute capability 8.9 or newer, this is {gpu.line}; use 'auto'"
        )
    if dtype != torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"weights 'fp8' are computed in bfloat16, not in {name}; set MILLSTREAM_DTYPE=bfloat16, or "
            "MILLSTREAM_WEIGHTS=auto"
        )
