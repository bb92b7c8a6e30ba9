"""What the commands write: messages to standard error, answers to standard output."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.markup import escape

errors = Console(stderr=True, highlight=False, soft_wrap=True)
answers = Console(highlight=False, soft_wrap=True, markup=False)


def say(message: str) -> None:
    """Something to know; the command goes on."""
    errors.print(f"[dim]millstream:[/dim] {escape(message)}")


def warn(message: str) -> None:
    errors.print(f"[yellow]millstream: warning:[/yellow] {escape(message)}")


def complain(message: str) -> None:
    """Why the command ends."""
    errors.print(f"[red]millstream: error:[/red] {escape(message)}")


def print_json(value: Any) -> None:
    """One line, for programs."""
    answers.out(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
