"""The machine of the figures, and the measured rates of its memory and matrix units."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def describe() -> str:
    """Date, commit, processor and cores in one line."""
    return f"{today()}, commit {commit()}, {hardware()}"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def commit(checkout: Path = Path()) -> str:
    """The short hash, with a plus where the working tree differs from it."""
    git = ("git", "-C", str(checkout))
    dirty = "+" if _output(*git, "status", "--porcelain") else ""
    return (_output(*git, "rev-parse", "--short", "HEAD") or "none") + dirty


def hardware(device: str = "cpu") -> str:
    """Processor, cores and Python, and the GPU if one computes."""
    cores = len(os.sched_getaffinity(0))
    text = f"{_processor()}, {cores} cores, Python {platform.python_version()}"
    if device.startswith("cuda"):
        import torch

        text = f"{torch.cuda.get_device_name(device)}, {text}"
    return text


@dataclass(frozen=True, slots=True)
class Limits:
    """The processor's highest rates, measured."""

    read_bytes_s: float
    flops_s: float  # of matrix products
    dtype: str = "bfloat16"  # of the numbers in the matrices

    def __str__(self) -> str:
        return f"{self.read_bytes_s / 1e9:,.0f} GB/s read, {self.flops_s / 1e9:,.0f} GFLOP/s {self.dtype}"


def precision(device: str = "cpu") -> str:
    """Of models and matrices: bfloat16, or what the device computes in its place."""
    import torch

    from millstream_worker.engine.runner.gpu.gpu import gpu_of
    from millstream_worker.engine.runner.model.dtypes import computed_in

    return str(computed_in(torch.bfloat16, gpu_of(torch.device(device)))).removeprefix("torch.")


def measure(threads: int, device: str = "cpu") -> Limits:
    """The best of a few sums over 512 MiB, and of a few products of 2048 x 2048 matrices; on a GPU 4 GiB and
    8192 x 8192."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    if not device.startswith("cuda"):
        return _rates(device, 512 * 2**20, 2048, lambda: None)
    limits = _rates(device, 4 * 2**30, 8192, torch.cuda.synchronize)
    torch.cuda.empty_cache()  # engines take the free memory
    return limits


def _rates(device: str, size: int, width: int, wait: Callable[[], object]) -> Limits:
    import torch

    block = torch.ones(size // 4, dtype=torch.float32, device=device)
    read_s, dtype = _best_s(block.sum, wait), precision(device)
    # Some processors multiply bfloat16 faster after conversion to float32.
    multiply_s = min(_multiply_s(width, kind, device, wait) for kind in {dtype, "float32"})
    return Limits(size / read_s, 2 * width**3 / multiply_s, dtype)


def _multiply_s(width: int, dtype: str, device: str, wait: Callable[[], object]) -> float:
    import torch

    matrix = torch.ones(width, width, dtype=getattr(torch, dtype), device=device)
    return _best_s(lambda: matrix @ matrix, wait)


def _best_s(work: Callable[[], object], wait: Callable[[], object]) -> float:
    seconds = []
    for _ in range(8):
        wait()
        start = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
