"""What is told about a GPU, and what one that lacks our kernels' needs gets."""

from __future__ import annotations

import pytest
import torch

from millstream_worker.engine.runner.gpu.gpu import GIB, Gpu
from millstream_worker.engine.runner.model.attention_choice import choose

T4 = Gpu("Tesla T4", (7, 5), 15 * GIB, 14 * GIB)


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        (Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB), []),
        (T4, ["compute capability 7.5 is below 8.0: bfloat16 becomes float32"]),
        (Gpu("AMD Instinct MI300X", (9, 4), 191 * GIB, 190 * GIB, "6.4"), ["ROCm: no such device"]),
        (
            Gpu("NVIDIA A100 MIG 1g.10gb", (8, 0), 10 * GIB, 9 * GIB),
            ["compute capability 8.0: nobody", "a MIG instance: the worker sees 10.0 GiB"],
        ),
        (
            Gpu("NVIDIA L4", (8, 9), 22 * GIB, 4 * GIB),
            ["compute capability 8.9: nobody", "others hold 18.0 GiB of this GPU; kv_memory"],
        ),
    ],
)
def test_what_the_operator_should_know(gpu: Gpu, says: list[str]) -> None:
    warnings = gpu.warnings()
    assert len(warnings) == len(says)
    assert all(warning.startswith(start) for warning, start in zip(warnings, says, strict=True))


def test_the_line_of_the_log() -> None:
    assert T4.line == "Tesla T4, compute capability 7.5, 14.0 of 15.0 GiB free"


def test_attention_is_pytorch_on_old_gpus_unless_chosen() -> None:
    device = torch.device("cuda")
    chosen = choose("auto", device, torch.float16, gpu=T4)
    assert (chosen.name, chosen.fallback) == ("torch", True)
    assert choose("triton", device, torch.float16, gpu=T4).name == "triton"
