"""Shared by all commands: messages with exit codes, and the wait for the model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import typer

from millstream.cli.display.load_progress import show_loading
from millstream.cli.display.terminal import complain, counted, print_json, say, warn
from millstream.cli.embedded.stack import LocalModel, Stack, open_stack
from millstream.cli.shared.exits import ExitCode, exit_code
from millstream.cli.shared.interrupts import run_async
from millstream.client.async_client import AsyncClient
from millstream.client.session.options import ClientOptions
from millstream.client.session.run_while import run_while
from millstream.client.session.session import outlast
from millstream.client.submit.submission import Submitted
from millstream.errors import MillstreamError, NotDurable
from millstream.wire.keys import shard_of

T = TypeVar("T")


@contextlib.contextmanager
def reported(as_json: bool, interrupted: Callable[[], str]) -> Iterator[None]:
    """Wraps a command: errors become one message (an object with --json) and an exit code.

    `interrupted` returns, after Ctrl-C, how to continue.
    """
    try:
        yield
    except MillstreamError as error:
        report(error, as_json)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        say(interrupted())
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def report(error: MillstreamError, as_json: bool) -> None:
    if as_json:
        code = exit_code(error)
        print_json({"error": {"type": type(error).__name__, "message": str(error), "exit_code": code}})
    else:
        complain(str(error))


async def load_model(stack: Stack) -> None:
    """Wait for the command's own worker, so that measured times exclude its start."""
    if stack.queue is not None:
        begun_s = time.monotonic()
        slower = await run_while(show_loading(stack.steps), stack.worker_ready())
        say(f"the model was loaded in {time.monotonic() - begun_s:.0f} s")
        for reason in slower:
            warn(reason, "slower")


async def outlast_outages(read: Callable[[], Awaitable[T]], for_s: float | None = None) -> T:
    """The first read of a command that waits: a restarting server is waited for, for at most `for_s`."""
    longest_s = ClientOptions().reconnect_s
    for_s = longest_s if for_s is None else min(for_s, longest_s)
    return await outlast(read, for_s, lambda error: say(f"{error}; trying again for {for_s:g} s"))


def run_with_client(
    redis_url: str | None, queue: str, work: Callable[[AsyncClient], Awaitable[None]]
) -> None:
    """Do the work with a client of the queue, on the given server or the embedded one, without a worker."""
    run_on_stack(redis_url, queue, lambda _, client: work(client))


def run_on_stack(
    redis_url: str | None,
    queue: str,
    work: Callable[[Stack, AsyncClient], Awaitable[None]],
    *,
    model: LocalModel | None = None,
    options: ClientOptions | None = None,
) -> None:
    """The same, with a worker of the `model` beside an embedded server."""
    with open_stack(redis_url or None, model, queue=queue) as stack:

        async def connected() -> None:
            async with AsyncClient(stack.url, queue=queue, options=options) as client:
                await work(stack, client)

        run_async(stack.guard(connected()))


async def warn_if_unserved(stack: Stack, queue: str, job_id: str) -> None:
    """Warn if no worker serves the job's shard."""
    with contextlib.suppress(MillstreamError):  # not readable, or damaged: the job does not depend on it
        if stack.queue is None and shard_of(job_id) in await stack.unserved(queue):
            warn_of_no_worker(queue, await stack.loading(queue), "the job waits")


def warn_of_no_worker(queue: str, loading: int, waits: str) -> None:
    """`loading`: the number of workers that load their model; `waits`: the subject and verb of a wait."""
    soon = f", but {counted(loading, 'worker')} {'loads its' if loading == 1 else 'load their'} model"
    warn(f"no worker serves the queue {queue!r} now{soon if loading else ''}; {waits} until one does")


def warn_if_not_durable(job: Submitted) -> None:
    try:
        job.raise_for_durability()
    except NotDurable as error:
        warn(str(error))
