"""Describes a GPU: what it can compute, and what the operator should know about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GIB = 2**30
_AMPERE = (8, 0)  # the first with bfloat16, and with copies that run beside tensor cores
# Compute capabilities of GPUs on which the first step of ops/gpu_survey has found everything right. That our
# kernels were compiled for others says what they take there, not that they are right.
_TESTED = frozenset({(9, 0)})
_ADA = (8, 9)  # the first that multiplies in FP8
_OWN_BYTES = 2 * GIB  # taken by the driver and this process' context, at the most


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    total: int  # bytes
    free: int
    rocm: str = ""  # version of it; "": CUDA

    @property
    def runs_our_kernels(self) -> bool:
        """True if it has bfloat16, and shared memory for the kernels' tiles."""
        return bool(self.rocm) or self.capability >= _AMPERE

    @property
    def multiplies_float8(self) -> bool:
        return not self.rocm and self.capability >= _ADA

    @property
    def tested(self) -> bool:
        """True if the engine has run on one like it, and everything was right."""
        return not self.rocm and self.capability in _TESTED

    @property
    def line(self) -> str:
        """Returns the log line about it."""
        kind = f"ROCm {self.rocm}" if self.rocm else "compute capability {}.{}".format(*self.capability)
        return f"{self.name}, {kind}, {self.free / GIB:.1f} of {self.total / GIB:.1f} GiB free"

    def warnings(self) -> list[str]:
        found = []
        if self.rocm:
            found.append("ROCm: no such device has been tested; what fails the check at start is not used")
        if not self.runs_our_kernels:
            found.append(
                "compute capability {}.{} is below 8.0: bfloat16 becomes float32 (MILLSTREAM_DTYPE=float16 "
                "takes half of its memory), and attention is PyTorch's, which is slow".format(
                    *self.capability
                )
            )
        elif not self.rocm and not self.tested:
            found.append(
                "compute capability {}.{}: nobody has run our kernels on it; attention is checked at "
                "start".format(*self.capability)
            )
        if " MIG " in f" {self.name} ":
            found.append(f"a MIG instance: the worker sees {self.total / GIB:.1f} GiB of the GPU")
        if self.total - self.free > _OWN_BYTES:
            found.append(
                f"others hold {(self.total - self.free) / GIB:.1f} GiB of this GPU; kv_memory 'auto' "
                "takes 90% of what is free: run one worker on a GPU, or give each a size (kv_memory 20GiB)"
            )
        return found


def gpu_of(device: torch.device) -> Gpu | None:
    """Returns what torch reports of a device; None for the CPU."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    return Gpu(name, capability, total, free, torch.version.hip or "")
