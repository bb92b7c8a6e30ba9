"""Runs compilers: side by side, and within limits.

A compiler is given up by what it has computed, not by the clock: on a machine that others keep busy, or in a
container with half a processor, it takes minutes and is nevertheless as good as ever. The clock is for one
that waits for something that never comes.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from millstream_worker.engine.runner.device.cpu_threads import available_cores
from millstream_worker.engine.session_cpu import session_cpu_s

_GUARDED = Path(__file__).with_name("guarded.py")
_LOOK_S = 0.1
_LOOKS_A_MEASUREMENT = 10


class CannotBuild(Exception):
    """There is no library; the message says why."""


@dataclass(frozen=True, slots=True)
class CompileLimits:
    """Bounds commands that run together. `cpu_s`: what all their processes may compute. `wall_s`: how long
    they may take, counted in looks: while this process is suspended, they mostly are as well."""

    cpu_s: float = 60.0  # all of the library took 18 on a Xeon with AMX
    wall_s: float = 600.0

    def check(self, running: Sequence[_Command], looks: int, ended_s: float) -> None:
        """Raises CannotBuild if they are exceeded. `ended_s`: what commands have computed that have ended."""
        compiler = running[0].argv[0]
        if looks * _LOOK_S > self.wall_s:
            raise CannotBuild(f"{compiler} had not ended after {self.wall_s:.0f} s")
        if looks % _LOOKS_A_MEASUREMENT:
            return
        if ended_s + sum(session_cpu_s(one.process.pid) for one in running) > self.cpu_s:
            raise CannotBuild(f"{compiler} took more than {self.cpu_s:.0f} s of CPU time")


@dataclass(slots=True, eq=False)
class _Command:
    """One that runs, in a session of its own."""

    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    errors: IO[bytes]

    def runs(self) -> bool:
        """Raises CannotBuild if it has failed."""
        if self.process.poll():
            self.result()
        return self.process.returncode is None

    def result(self) -> str:
        """Returns its output. Raises CannotBuild if it has failed."""
        for file in (self.output, self.errors):
            file.seek(0)
        if self.process.returncode:
            said = self.errors.read().decode(errors="replace")  # the name of a source may be in any encoding
            reasons = [line for line in said.splitlines() if "error" in line] or [said.strip()]
            raise CannotBuild(f"{self.argv[0]} failed with status {self.process.returncode}: {reasons[0]}")
        return self.output.read().decode(errors="replace")


def run(
    *command: str,
    folder: str = "",
    limits: CompileLimits | None = None,
    mark: Callable[[], None] = lambda: None,
) -> str:
    """Returns the command's output. See `run_all`."""
    return run_all([command], folder=folder, limits=limits, mark=mark)[0]


def run_all(
    commands: Sequence[Sequence[str]],
    *,
    folder: str = "",
    limits: CompileLimits | None = None,
    mark: Callable[[], None] = lambda: None,
) -> list[str]:
    """Returns the commands' outputs; as many run at a time as there are cores. `mark` is called all the
    while. Raises CannotBuild for the first that fails, or where all together exceed the limits.

    None of their processes outlives the call, nor this process, however it ends; then the folder is removed.
    """
    limits, cores = limits or CompileLimits(), available_cores()
    waiting, begun, before_s = deque(commands), list[_Command](), _ended_s()
    with contextlib.ExitStack() as ends:
        for looks in count():
            running = [one for one in begun if one.runs()]
            while waiting and len(running) < cores:
                running.append(ends.enter_context(_started(waiting.popleft(), folder)))
                begun.append(running[-1])
            if not running:
                break
            limits.check(running, looks, _ended_s() - before_s)
            mark()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].process.wait(_LOOK_S)
        return [one.result() for one in begun]


def _ended_s() -> float:
    """Returns what the children of this process have computed that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def _started(argv: Sequence[str], folder: str) -> Iterator[_Command]:
    """The pipe is open as long as the block, or this process: then `guarded.py` ends the command."""
    reading, writing = os.pipe()
    with contextlib.ExitStack() as open_files:
        alive = open_files.enter_context(os.fdopen(writing, "wb"))
        output, errors = (
            open_files.enter_context(tempfile.TemporaryFile(dir=folder or None)) for _ in range(2)
        )
        with os.fdopen(reading, "rb") as until:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDED), folder, *argv],
                stdin=until,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        with process:
            try:
                yield _Command(argv, process, output, errors)
            finally:
                alive.close()
