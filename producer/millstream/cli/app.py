"""The command line's commands in one place."""

from __future__ import annotations

import signal

import typer

from millstream.cli import batch, jobs
from millstream.cli.exits import epilog

app = typer.Typer(
    help="Queue prompts for LLM workers, stream their tokens, collect their results.",
    epilog=epilog(),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(batch.app, name="batch")
for command in jobs.COMMANDS:
    app.command()(command)


def run() -> None:
    """The console script."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: end in order, leave nothing running
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    app()
