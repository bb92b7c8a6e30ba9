"""What the figures were measured on, and what its memory can do: every figure stands beside this."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time


def describe() -> str:
    """Date, commit, processor and cores in one line."""
    commit = _output("git", "rev-parse", "--short", "HEAD") or "no commit"
    dirty = "+" if _output("git", "status", "--porcelain") else ""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    cores = len(os.sched_getaffinity(0))
    return f"{day}, commit {commit}{dirty}, {_processor()}, {cores} cores, Python {platform.python_version()}"


def read_bandwidth(threads: int) -> float:
    """Bytes per second that the processor reads from memory: the best of a few sums over 512 MiB."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    block = torch.ones(512 * 2**20 // 4, dtype=torch.float32)
    best = 0.0
    for _ in range(8):
        start = time.perf_counter()
        block.sum()
        best = max(best, block.numel() * 4 / (time.perf_counter() - start))
    return best


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
