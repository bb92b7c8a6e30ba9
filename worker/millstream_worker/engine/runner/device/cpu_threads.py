"""How many threads torch computes with on the CPU.

More threads than cores make a step slower, as each parallel region waits for its last thread. Whoever starts
the engine's process also says how its threads wait between regions, see `engine_environment`: OpenMP reads
that once, when torch is imported. While others take cores, `FreeCores` has steps computed by fewer threads.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from millstream_worker.engine.runner.device.cgroup import ControlGroups

_CPUS = Path("/sys/devices/system/cpu")


def use_threads(threads: int) -> int:
    """Let torch compute with so many threads; 0: one per core that is available. Returns the number."""
    chosen = threads or available_cores()
    torch.set_num_threads(chosen)
    return chosen


def available_cores(groups: ControlGroups | None = None, cpus: Path = _CPUS) -> int:
    """Cores this process may use, at least 1: those of its CPU affinity (hyperthreads of one core count once)
    within its control groups' quota, of which half a core counts as one: two threads that are held up for a
    quarter of the time compute more than one."""
    cores = _cores_of(_affinity(), cpus)
    quota = (groups or ControlGroups()).cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota + 0.5)))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores_of(numbers: set[int], cpus: Path) -> int:
    """Hyperthreads of a core share its vector units, which is all that matrix products wait for."""
    return len(
        {_siblings(cpus / f"cpu{number}" / "topology" / "thread_siblings_list", number) for number in numbers}
    )


def _siblings(file: Path, number: int) -> str:
    try:
        return file.read_text()
    except OSError:  # the kernel says nothing: a core of its own
        return str(number)
