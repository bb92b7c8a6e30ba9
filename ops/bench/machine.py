"""What the figures were measured on, and what its memory can do: every figure stands beside this."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass


def describe() -> str:
    """Date, commit, processor and cores in one line."""
    commit = _output("git", "rev-parse", "--short", "HEAD") or "no commit"
    dirty = "+" if _output("git", "status", "--porcelain") else ""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    cores = len(os.sched_getaffinity(0))
    return f"{day}, commit {commit}{dirty}, {_processor()}, {cores} cores, Python {platform.python_version()}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the processor does at most, measured."""

    read_bytes_s: float
    flops_s: float  # of bf16 matrix products

    def __str__(self) -> str:
        return f"{self.read_bytes_s / 1e9:.0f} GB/s read, {self.flops_s / 1e9:.0f} GFLOP/s bf16"


def measure(threads: int) -> Limits:
    """The best of a few sums over 512 MiB, and of a few products of 2048 x 2048 matrices."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    block = torch.ones(512 * 2**20 // 4, dtype=torch.float32)
    matrix = torch.ones(2048, 2048, dtype=torch.bfloat16)
    read_s, multiply_s = _best_s(block.sum), _best_s(lambda: matrix @ matrix)
    return Limits(block.numel() * 4 / read_s, 2 * 2048**3 / multiply_s)


def _best_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        work()
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
