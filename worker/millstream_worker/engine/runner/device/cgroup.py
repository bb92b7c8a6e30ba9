"""Reads how much memory and processor the control groups of this process leave it: the limits of a container.

Reads version 2 and version 1 files; a limit of any group above counts too. None means: no limit is set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups as the kernel shows them at these places."""

    mount: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def memory_left(self) -> int | None:
        """Returns the bytes up to the nearest limit. Cached file pages that can be dropped at once count as
        free. From memory.high on the kernel holds the process up to make it take less: that is a limit as
        well."""
        left: list[int] = []
        for folder in self._folders(""):
            limits = _numbers(folder / "memory.max") + _numbers(folder / "memory.high")
            used = _numbers(folder / "memory.current")
            if limits and used:
                left.append(min(limits) - used[0] + _stat(folder, "inactive_file"))
        for folder in self._folders("memory"):
            limit = _numbers(folder / "memory.limit_in_bytes")
            used = _numbers(folder / "memory.usage_in_bytes")
            if limit and used:
                left.append(limit[0] - used[0] + _stat(folder, "total_inactive_file"))
        return max(0, min(left)) if left else None

    def cpu_quota(self) -> float | None:
        """Returns the limit in processors."""
        quotas: list[float] = []
        for folder in self._folders(""):
            share = _numbers(folder / "cpu.max")  # "quota period", or "max period"
            if len(share) == 2:
                quotas.append(share[0] / share[1])
        for folder in self._folders("cpu"):
            quota = _numbers(folder / "cpu.cfs_quota_us")  # -1: none
            period = _numbers(folder / "cpu.cfs_period_us")
            if quota and period and quota[0] > 0:
                quotas.append(quota[0] / period[0])
        return min(quotas) if quotas else None

    def throttled_s(self) -> float:
        """Returns how long a quota has held up this process' groups, on all processors together."""
        held_up = [_stat(folder, "throttled_usec", "cpu.stat") / 1e6 for folder in self._folders("")]
        held_up += [_stat(folder, "throttled_time", "cpu.stat") / 1e9 for folder in self._folders("cpu")]
        return max(held_up, default=0.0)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Yields this process' group and all above it, of a version 1 controller or ("") of version 2."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:  # not Linux
            return
        top = self.mount / controller
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                own = top / path.lstrip("/")
                # In a container the path may be the host's, and what is mounted is the own group.
                yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def _numbers(file: Path) -> list[int]:
    """Returns the numbers in a file of one line; none where there is no such file, or it says "max"."""
    try:
        words = file.read_text().split()
    except OSError:
        return []
    return [] if "max" in words else [int(word) for word in words]


def _stat(folder: Path, name: str, file: str = "memory.stat") -> int:
    try:
        lines = (folder / file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
