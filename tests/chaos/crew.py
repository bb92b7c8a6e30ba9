"""The workers of an arena: real processes, hired, hurt and replaced. Who was hurt, how and when, is kept: a
job may be taken away only from a worker that was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from support.workers.counting_worker import flags_of, settings

TESTS = Path(__file__).parent.parent
MARK = "CHAOS_FOLDER"  # in the environment of a crew's workers, and so of their engines
NURSERY = "millstream_worker.images.nursery"
WORKER = ("millstream_worker",)  # what `python -m` runs, and what comes before the flags


@dataclass(frozen=True, slots=True)
class Harm:
    """`at_s` by the wall clock, as the server's times are."""

    at_s: float
    what: str


class Member:
    """One worker process in a session of its own; its log is a file."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self.harms: list[Harm] = []
        self.frozen = False
        self.dismissed = False  # its end is wanted
        marked = {MARK: str(log.parent)}
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = marked | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=os.environ | environment
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def started(self) -> bool:
        """It has come past its imports: from then on a SIGTERM drains it."""
        return b"worker starts" in self.log.read_bytes()

    def owns(self, consumer: str) -> bool:
        """A worker's consumer name is its own name with a nonce."""
        return consumer.rpartition("-")[0] == self.name

    def engine_pid(self) -> int | None:
        """None while there is no engine."""
        return next((pid for pid, command in self._children() if NURSERY not in command), None)

    def nursery_pid(self) -> int | None:
        """Of the process that forks those that prepare images; None while there is none."""
        return next((pid for pid, command in self._children() if NURSERY in command), None)

    def _children(self) -> list[tuple[int, list[str]]]:
        try:
            children = psutil.Process(self.process.pid).children()
            commands = [(child.pid, child.cmdline()) for child in children]
        except psutil.Error:
            return []
        return [(pid, command) for pid, command in commands if "--fd" in command]

    def harm(self, what: str) -> None:
        self.harms.append(Harm(time.time(), what))

    def kill(self) -> None:
        self.dismissed = True
        self._hurt("killed", signal.SIGKILL)

    def terminate(self) -> None:
        self.dismissed = True
        self._hurt("drained", signal.SIGTERM)

    def freeze(self) -> None:
        self.frozen = True
        self._hurt("frozen", signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        self._hurt("thawed", signal.SIGCONT)

    async def ended(self, wait_s: float = 30.0) -> int | None:
        """The exit status; None where it has not ended in time."""
        until = time.monotonic() + wait_s
        while self.alive and time.monotonic() < until:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(0.02)
        return self.process.poll()

    def _hurt(self, what: str, number: signal.Signals) -> None:
        self.harm(what)
        if self.alive:
            send(self.process.pid, number)


@dataclass(slots=True, eq=False)
class Crew:
    """`members` has all that were ever hired, in the order of their hiring."""

    folder: Path
    settings: Mapping[str, Any]
    launcher: Sequence[str]
    members: list[Member] = field(default_factory=list)
    size: int = 0

    @property
    def alive(self) -> list[Member]:
        """Those that are not on their way out."""
        return [member for member in self.members if member.alive and not member.dismissed]

    def hire(self, *, launcher: Sequence[str] | None = None, **changes: Any) -> Member:
        """Start one more worker. `launcher`: a module for `python -m` and its first arguments, in place of
        the worker's own; `changes`: settings."""
        name = f"m{len(self.members)}"
        given = dict(self.settings) | {"name": name} | changes
        chosen = settings(given["redis_url"], given.pop("model"), **given)
        command = [sys.executable, "-m", *(launcher or self.launcher), *flags_of(chosen)]
        self.members.append(Member(name, command, self.folder / f"{name}.log"))
        return self.members[-1]

    def ensure(self, size: int | None = None) -> list[Member]:
        """Hire until so many are alive; without a number, as many as before. Answers the new ones."""
        self.size = self.size if size is None else size
        return [self.hire() for _ in range(self.size - len(self.alive))]

    def member(self, consumer: str) -> Member | None:
        """Who has this consumer name."""
        return next((member for member in self.members if member.owns(consumer)), None)

    def harm(self, what: str) -> None:
        """All of them, by something that a lease may not survive (a partition)."""
        for member in self.alive:
            member.harm(what)

    def tail(self, lines: int = 40) -> str:
        """The last lines of every worker's log."""
        texts = {member.name: member.log.read_text(errors="replace").splitlines() for member in self.members}
        return "\n".join(f"{name}: {line}" for name, text in texts.items() for line in text[-lines:])

    async def drain(self, wait_s: float = 40.0) -> dict[str, int | None]:
        """SIGTERM for all, SIGKILL for those that have not begun; exit status by name, None for one that had
        to be killed."""
        leaving = [member for member in self.alive if member.started]
        for member in leaving:
            member.terminate()
        statuses = {member.name: await member.ended(wait_s) for member in leaving}
        self.end()
        return statuses

    def end(self) -> None:
        """All at once: workers, and engines that would outlive them (stopped ones do)."""
        for process in psutil.process_iter(["environ"]):
            if (process.info["environ"] or {}).get(MARK) == str(self.folder):
                send(process.pid, signal.SIGKILL)
        for member in self.members:
            member.process.wait(timeout=15)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was quicker
        os.kill(pid, number)
