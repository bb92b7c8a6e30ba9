"""The record that the embedded server's owner leaves for other commands, to reach it or to end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

TERM_S = 15.0  # for a process to end in order, before it is killed


@dataclass(frozen=True, slots=True)
class Instance:
    """The server's address and the processes that belong to it. Kept as JSON in the server's folder."""

    socket: str
    owner: int
    server: int
    worker: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Instance | None:
        """None if there is no record, or it is damaged."""
        try:
            return cls(**json.loads(_path(folder).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        part = folder / "instance.json.part"
        part.write_text(json.dumps(asdict(self)))
        part.replace(_path(folder))

    @staticmethod
    def remove(folder: Path) -> None:
        _path(folder).unlink(missing_ok=True)


def _path(folder: Path) -> Path:
    return folder / "instance.json"


def end(pid: int, word: str) -> None:
    """End the process, in order or else by force, if its command line contains `word`: pids are reused."""
    _signal(pid, word, signal.SIGTERM)
    until = time.monotonic() + TERM_S
    while _runs_with(pid, word):
        if time.monotonic() > until:
            _signal(pid, word, signal.SIGKILL)
        time.sleep(0.05)


def stop(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """End a process of our own, in order or else by force; a second Ctrl-C does not wait."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(wait_s)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _signal(pid: int, word: str, number: signal.Signals) -> None:
    if _runs_with(pid, word):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _runs_with(pid: int, word: str) -> bool:
    if Path("/proc/self").exists():
        try:
            return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
    command = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    return word in subprocess.run(command, capture_output=True, text=True, check=False).stdout
