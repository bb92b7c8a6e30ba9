"""Peak memory of this process and those it has started, from Linux' own counters."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def reset_peak(device: str = "cpu") -> None:
    """Reset the count of `peak_bytes`. If the kernel does not allow it, it counts from the start."""
    if device.startswith("cuda"):
        with contextlib.suppress(ImportError):
            import torch

            torch.cuda.reset_peak_memory_stats()
    for process in _family():
        with contextlib.suppress(OSError):
            (process / "clear_refs").write_text("5")


def peak_bytes(device: str = "cpu") -> int:
    """The peak memory of these processes, each at its own time, added up. On a GPU the peak of its memory
    that torch has allocated here, or, if another process computes, or no torch, its used memory now.
    """
    if device.startswith("cuda"):
        try:
            import torch
        except ImportError:  # llama.cpp's environment
            return _taken_of_device()
        free, total = torch.cuda.mem_get_info()
        return int(torch.cuda.max_memory_allocated()) or int(total - free)
    return sum(_peak(process) for process in _family())


def _taken_of_device() -> int:
    """Used memory of the first GPU, by its driver; 0 if unknown."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(answer) * 2**20
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0


def _family() -> Iterator[Path]:
    waiting = [_PROC / "self"]
    while waiting:
        process = waiting.pop()
        yield process
        for children in process.glob("task/*/children"):
            with contextlib.suppress(OSError):  # it has ended
                waiting += [_PROC / pid for pid in children.read_text().split()]


def _peak(process: Path) -> int:
    try:
        found = _PEAK.search((process / "status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
