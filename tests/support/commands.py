"""The command line as its users run it: as a process, or in this one where only its outcome matters."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from millstream.cli.app import app
from support.screen import screen

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
def on_terminal(
    *arguments: object, columns: int, lines: int = 24, answers: bool = False
) -> Iterator[Terminal]:
    """The same with a terminal of its own, whose Ctrl-C it gets; with `answers`, what it writes to standard
    output is on it, too.
    """
    variables = environment(TERM="xterm")
    for name in ("COLUMNS", "LINES"):  # pytest's workers may have them, and a program believes them
        variables.pop(name, None)
    if not answers:
        variables["COLUMNS"] = str(columns)
    ours, theirs = pty.openpty()
    resize(ours, columns, lines)
    running = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-m", "millstream", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs if answers else subprocess.DEVNULL,
        stderr=theirs,
        env=variables,
    )
    os.close(theirs)
    try:
        yield Terminal(running, ours, columns)
    finally:
        running.kill()
        running.wait(timeout=30)
        os.close(ours)


class Terminal:
    """`shown` is what has come to the screen so far."""

    def __init__(self, running: subprocess.Popen[bytes], file: int, columns: int) -> None:
        self.running = running
        self.shown = b""
        self._file = file
        self._columns = columns

    @property
    def screen(self) -> list[str]:
        """Its lines now."""
        return screen(self.shown.decode(errors="ignore"), self._columns)

    def resize(self, columns: int, lines: int) -> None:
        self._columns = columns
        resize(self._file, columns, lines)

    def until(self, seen: Callable[[list[str]], bool], wait_s: float = 30.0) -> list[str]:
        """Read until the screen has something; returns its lines."""
        until_s = time.monotonic() + wait_s
        while not seen(self.screen):
            assert time.monotonic() < until_s, "\n".join(self.screen)
            wait = 0.1
            while select.select([self._file], [], [], wait)[0]:
                self.shown += os.read(self._file, 100_000)
                wait = 0.0  # all that is there: to look at a screen takes longer than a piece
        return self.screen

    def read_until(self, text: bytes) -> None:
        while text not in self.shown:
            self.shown += os.read(self._file, 10_000)

    def press_ctrl_c(self) -> None:
        os.write(self._file, b"\x03")


def resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


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
