"""What all commands do the same way: end with a message and an exit code, wait for the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import typer

from millstream.cli.exits import ExitCode, exit_code
from millstream.cli.stack import Stack
from millstream.cli.terminal import complain, errors, print_json, say
from millstream.errors import MillstreamError


@contextlib.contextmanager
def reported(as_json: bool, interrupted: Callable[[], str]) -> Iterator[None]:
    """Around a command: errors become one message (an object with --json) and an exit code.

    `interrupted` says, after Ctrl-C, how to go on.
    """
    try:
        yield
    except MillstreamError as error:
        code = exit_code(error)
        if as_json:
            print_json({"error": {"type": type(error).__name__, "message": str(error), "exit_code": code}})
        else:
            complain(str(error))
        raise typer.Exit(code) from error
    except KeyboardInterrupt:
        say(interrupted())
        raise typer.Exit(ExitCode.INTERRUPTED) from None


async def load_model(stack: Stack) -> None:
    """Wait for the command's own worker, so that what is measured is the work and not its start."""
    if stack.queue is not None:
        with errors.status("loading the model"):
            await stack.worker_ready()
