"""Output of the commands: messages to standard error, answers to standard output."""

from __future__ import annotations

import errno
import os
from typing import Any

from rich.console import Console
from rich.markup import escape

from millstream.json_bytes import json_bytes


class Terminal(Console):
    """Raises BrokenPipeError if nobody reads any more (`| head`): typer then ends the command silently. Rich
    itself would exit, which asyncio shows as a fault of the task that printed.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


errors = Terminal(stderr=True, highlight=False, soft_wrap=True)
answers = Terminal(highlight=False, soft_wrap=True, markup=False)


def say(message: str) -> None:
    """Print an information; the command continues."""
    errors.print(f"[dim]millstream:[/dim] {escape(message)}")


def warn(message: str, kind: str = "warning") -> None:
    errors.print(f"[yellow]millstream: {kind}:[/yellow] {escape(message)}")


def complain(message: str) -> None:
    """Print the reason why the command ends."""
    errors.print(f"[red]millstream: error:[/red] {escape(message)}")


def print_json(value: Any) -> None:
    """Print one line, for programs."""
    answers.out(json_bytes(value).decode())


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun: "1 job", "1,200 jobs"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def plain(text: str) -> str:
    """A foreign text without characters that control a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
