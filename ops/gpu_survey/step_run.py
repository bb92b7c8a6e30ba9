"""Runs the parts of one step, each in a process of its own with a time limit: one that crashes, hangs or
meets an illegal access costs nothing but itself. Knows no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.gpu_survey.ladder import Group, Part
from ops.gpu_survey.report import Report
from ops.gpu_survey.survey import ENDS, QUIET

_LEAST_S = 6.0  # a process that imports torch finds nothing in less
_POLL_S = 0.1
_SLOWER = 5  # a machine without a GPU, which may have few cores


@dataclass(slots=True, eq=False)
class _Running:
    part: Part
    process: subprocess.Popen[bytes]
    started: float
    limit_s: float

    @property
    def end(self) -> str | None:
        """How the process has ended; None while it may run on."""
        status = self.process.poll()
        if status is None:
            over = time.monotonic() - self.started > self.limit_s
            return f"killed at its limit of {self.limit_s:.0f} s" if over else None
        if status < 0:
            return f"killed by {signal.Signals(-status).name}"
        return ENDS.get(status, f"failed, status {status}")

    def kill(self) -> None:
        """And what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver
            self.process.wait(_LEAST_S)


@dataclass(frozen=True, slots=True, eq=False)
class StepRun:
    """`device`: cuda, cpu or null; without a GPU limits are longer. `scratch`: where the parts
    write. `environment`: of their processes."""

    device: str
    seconds: float  # for all parts together, on a GPU's machine
    scratch: Path
    environment: Mapping[str, str]
    report: Report
    tell: Callable[[str], object]

    def run(self, groups: Iterable[Group]) -> None:
        deadline = time.monotonic() + self._longer(self.seconds)
        for group in groups:
            self._run_group(group, deadline)
        self.report.write()

    def _run_group(self, group: Group, deadline: float) -> None:
        """The parts side by side. Those that wait are told when the others have ended."""
        left = deadline - time.monotonic()
        if left < _LEAST_S:
            for part in group:
                self._ended(part, "no time left", 0.0)
            return
        quiet = self.scratch / f"{group[0].name}.quiet"
        running = [self._start(part, left, quiet) for part in group]
        try:
            while running:
                time.sleep(_POLL_S)
                if all(one.part.waits for one in running):
                    quiet.touch()
                running = [one for one in running if not self._has_ended(one)]
        finally:
            for one in running:
                one.kill()

    def _start(self, part: Part, left_s: float, quiet: Path) -> _Running:
        self.tell(f"== {part.name}")
        limit_s = min(self._longer(part.limit_s), left_s)
        device = "cpu" if self.device == "cpu" else "cuda"
        arguments = (part.entry, part.name, device, str(self.scratch), f"{limit_s:.1f}")
        with (self.scratch / f"{part.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-u", "-X", "faulthandler", "-m", "ops.gpu_survey.part_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self.environment, **part.environment, **({QUIET: str(quiet)} if part.waits else {})},
            )
        return _Running(part, process, time.monotonic(), limit_s)

    def _longer(self, seconds: float) -> float:
        return seconds * (1 if self.device == "cuda" else _SLOWER)

    def _has_ended(self, one: _Running) -> bool:
        end = one.end
        if end is None:
            return False
        one.kill()
        self._ended(one.part, end, time.monotonic() - one.started)
        return True

    def _ended(self, part: Part, end: str, seconds: float) -> None:
        self.report.add(part, end, seconds)
        self.tell(f"-- {part.name}: {end}, {seconds:.0f} s")
