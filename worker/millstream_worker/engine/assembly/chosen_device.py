"""Chooses the device that an engine computes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from millstream_worker.engine.protocol.config import EngineConfig
from millstream_worker.engine.runner.device.cpu_threads import use_threads
from millstream_worker.engine.runner.gpu.cuda_graphs import recording
from millstream_worker.engine.runner.gpu.gpu import Gpu, gpu_of


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    device: torch.device
    gpu: Gpu | None  # None: the CPU
    records: bool  # its steps become CUDA graphs


def choose_device(config: EngineConfig, report: Callable[[str], None]) -> ChosenDevice:
    """Returns the device, with as many threads for torch as loading a model takes. Raises ValueError for one
    that is not there, or does not have what is asked for."""
    device = _device(config.device)
    records = recording.wanted(config.cuda_graphs, device)
    gpu = gpu_of(device)
    for line in (gpu.line, *gpu.warnings()) if gpu else (f"using {use_threads(config.threads)} CPU threads",):
        report(line)
    return ChosenDevice(device, gpu, records)


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this torch build sees no CUDA device; use 'cpu' or 'auto'")
    if device.type == "cuda":
        index, count = device.index or 0, torch.cuda.device_count()
        if index >= count:
            raise ValueError(f"device {name!r}: there are {count} CUDA devices here, counted from cuda:0")
        torch.cuda.set_device(index)  # events and Triton's kernels belong to the current device
    return device
