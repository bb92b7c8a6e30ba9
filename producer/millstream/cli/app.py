"""All commands of the command line."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Annotated

import typer

from millstream.cli.batch import batch_command
from millstream.cli.commands import dead_command, job_commands, keys_command
from millstream.cli.commands.gateway_command import gateway
from millstream.cli.commands.queue_command import queue
from millstream.cli.display.terminal import answers
from millstream.cli.shared.exits import epilog
from millstream.cli.shared.help import HelpCommand, HelpGroup
from millstream.version import version

app = typer.Typer(
    cls=HelpGroup,
    help="Queue prompts for LLM workers, stream their tokens, collect their results.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        answers.out(f"millstream {version()}")
        raise typer.Exit


@app.callback()
def _millstream(
    _: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """All commands."""


app.add_typer(batch_command.app, name="batch")
app.add_typer(dead_command.app, name="dead")
app.add_typer(keys_command.app, name="keys")
for command in job_commands.COMMANDS:
    app.command(cls=HelpCommand)(command)
app.command(cls=HelpCommand)(queue)
app.command(cls=HelpCommand)(gateway)


def run() -> None:
    """The console script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a script ignores Ctrl-C; ending in order on the other signals takes Python's
        # handler.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup: the command continues
            signal.signal(number, _as_ctrl_c)
    app(prog_name="millstream")  # also for `python -m`: shell completion uses that name


def _as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """End in order, leave nothing running."""
    handler = signal.getsignal(signal.SIGINT)  # asyncio has its own while it runs
    assert callable(handler), "run() saw to it"
    handler(signal.SIGINT, frame)
