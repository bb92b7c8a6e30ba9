"""The command line as its users run it: as a process, or in this one where only its outcome matters."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from millstream.cli.app import app

BESIDE = Path(__file__).parents[1]


def invoke(*arguments: object, text: str | None = None) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)


def assert_refused(problem: str, *arguments: object, code: int = 2, text: str | None = None) -> None:
    """The command ends with this code, and says so."""
    done = invoke(*arguments, text=text)
    assert (done.exit_code, problem in done.stderr) == (code, True), done.output


def environment(**changes: object) -> dict[str, str]:
    """For a process: this one's, without settings that a developer may have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLSTREAM_")}
    return kept | {name: str(value) for name, value in changes.items()}


@contextmanager
def on_terminal(*arguments: object, columns: int) -> Iterator[Terminal]:
    """The same with a terminal of its own, whose Ctrl-C it gets."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "millstream", *map(str, arguments)],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS=columns),
    )
    os.close(theirs)
    try:
        yield Terminal(running, ours)
    finally:
        running.kill()
        running.wait(timeout=30)
        os.close(ours)


class Terminal:
    """`shown` is what has come to the screen so far."""

    def __init__(self, running: subprocess.Popen[bytes], file: int) -> None:
        self.running = running
        self.shown = b""
        self._file = file

    def read_until(self, text: bytes) -> None:
        while text not in self.shown:
            self.shown += os.read(self._file, 10_000)

    def press_ctrl_c(self) -> None:
        os.write(self._file, b"\x03")


@contextmanager
def process(
    *arguments: object, before: tuple[str, ...] = (), **changes: object
) -> Iterator[subprocess.Popen[str]]:
    """`python -m millstream …`, run by the command `before`; killed at the end if it still runs."""
    running = subprocess.Popen(
        [*before, sys.executable, "-m", "millstream", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
        start_new_session=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=30)
