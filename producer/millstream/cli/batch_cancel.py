"""Taking a batch run back: `millstream batch cancel`, and Ctrl-C in the middle of a run."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.cancelling import Cancelled, cancel_jobs
from millstream.batch.journal import Journal
from millstream.cli.conduct import reported
from millstream.cli.options import AsJson, RedisUrl
from millstream.cli.stack import Stack, open_stack
from millstream.cli.terminal import answers, errors, print_json, say, warn
from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError

SECOND_S = 3.0  # for a second Ctrl-C


def cancel(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The run's output, as given to `batch run`.")],
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Cancel the jobs that an interrupted run has left in the queue. The input is not needed.

    The answers in OUT stay; the same `batch run` command later answers the remaining lines with new jobs.
    """
    with (
        reported(as_json, lambda: "interrupted; run the same command again"),
        Journal(out, begins=False) as run,
    ):
        done = Cancelled()
        if run.under_way:
            with open_stack(redis_url or None, None, say=say) as stack:
                done = asyncio.run(stack.guard(_cancel(stack, run)))
        if as_json:
            print_json(asdict(done))
        else:
            answers.out(_counts(done))


def settle_interrupt(stack: Stack, journal: Journal, *, at_once: bool) -> None:
    """After Ctrl-C: say what is left in the queue, and cancel it where that is wanted."""
    count = len(journal.under_way)
    if not count or not (at_once or _second_interrupt(stack, journal, count)):
        return
    try:
        say(_counts(asyncio.run(stack.guard(_cancel(stack, journal)))))
    except MillstreamError as error:
        warn(f"the run's jobs were not cancelled: {error}; repeat it with: {_command(journal)}")


def _second_interrupt(stack: Stack, journal: Journal, count: int) -> bool:
    jobs = "1 job of this run stays" if count == 1 else f"{count:,} jobs of this run stay"
    where = "queue, and workers go on with them" if stack.queue is None else "embedded server"
    say(f"{jobs} in the {where}; to cancel: {_command(journal)}")
    if not errors.is_terminal:
        return False
    say(f"Ctrl-C again within {SECOND_S:.0f} s cancels as well")
    try:
        time.sleep(SECOND_S)
    except KeyboardInterrupt:
        return True
    return False


def _command(journal: Journal) -> str:
    return f"millstream batch cancel {journal.out}"


async def _cancel(stack: Stack, journal: Journal) -> Cancelled:
    async with AsyncClient(stack.url) as client:
        return await cancel_jobs(client, journal, dict(journal.under_way))


def _counts(done: Cancelled) -> str:
    return (
        f"{done.cancelled:,} cancelled, {done.ended:,} had ended before, "
        f"{done.running:,} still running (their workers end them soon)"
    )
