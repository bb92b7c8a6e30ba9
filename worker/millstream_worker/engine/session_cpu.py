"""Reads what the processes of a session have computed: work that this process only waits for."""

from __future__ import annotations

import os
from pathlib import Path

_SESSION, _TIMES = 3, slice(11, 15)  # fields of proc_pid_stat(5) behind the name; utime to cstime


def session_cpu_s(session: int, but: int = 0, proc: Path = Path("/proc")) -> float:
    """Returns the CPU seconds of its living processes, and of those that they have waited for, without the
    process `but`; 0.0 where the system does not say."""
    ticks = 0
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[_SESSION]) == session and stat.parent.name != str(but):
            ticks += sum(map(int, fields[_TIMES]))
    return ticks / os.sysconf("SC_CLK_TCK")
