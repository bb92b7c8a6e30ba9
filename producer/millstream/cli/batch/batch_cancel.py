"""Cancels a batch run: `millstream batch cancel`, and Ctrl-C during a run."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.files.journal import Journal
from millstream.batch.run_cancellation import Cancelled, cancel_jobs
from millstream.cli.display.terminal import answers, counted, errors, print_json, say, warn
from millstream.cli.embedded.stack import Stack, open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import ExitCode
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import AsJson, RedisUrl
from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from millstream.openai.prompt_list import job_count

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
        jobs = {**run.notes.left, **run.notes.under_way}
        if jobs:
            with open_stack(redis_url or None, None) as stack:
                done = run_async(stack.guard(_cancel(stack, run)))
        if as_json:
            print_json(asdict(done))
        else:
            answers.out(_counts(done))
        if jobs and done.unknown == job_count(jobs):
            are = "job is" if done.unknown == 1 else "jobs are"
            warn(f"{done.unknown:,} {are} not known to this server: is --redis-url the one of the run?")
            raise typer.Exit(ExitCode.NOT_FOUND)


def settle_interrupt(stack: Stack, journal: Journal, redis_url: str | None, *, at_once: bool) -> None:
    """After Ctrl-C: report the jobs left in the queue, and cancel them if requested."""
    if not _most_left(journal) or not (at_once or _second_interrupt(stack, journal, redis_url)):
        return
    try:
        say(_counts(run_async(stack.guard(_cancel(stack, journal)))))
    except MillstreamError as error:
        warn(f"the run's jobs were not cancelled: {error}; repeat it with: {_command(journal, redis_url)}")


def say_what_stays(stack: Stack, journal: Journal, redis_url: str | None) -> None:
    """Report the jobs left in the queue, if any."""
    if not (most := _most_left(journal)):
        return
    jobs, them = f"{counted(most, 'job')} of this run", "it" if most == 1 else "them"
    if journal.notes.sent.accepted_count == most:
        stay = f"{jobs} {'stays' if most == 1 else 'stay'} in"
    else:  # replies were lost, or an earlier run has sent them
        stay = f"up to {jobs} may be in"
    where = f"queue, and workers go on with {them}" if stack.queue is None else "embedded server"
    say(f"{stay} the {where}; to cancel: {_command(journal, redis_url)}")


def _most_left(journal: Journal) -> int:
    """Jobs that the server has, or may have."""
    return job_count(journal.notes.under_way) - journal.notes.sent.absent_count


def _second_interrupt(stack: Stack, journal: Journal, redis_url: str | None) -> bool:
    say_what_stays(stack, journal, redis_url)
    if not errors.is_terminal:
        return False
    try:
        say(f"Ctrl-C again within {SECOND_S:.0f} s cancels as well")
        time.sleep(SECOND_S)
    except KeyboardInterrupt:
        return True
    return False


def _command(journal: Journal, redis_url: str | None) -> str:
    by_flag = redis_url and redis_url != os.environ.get("MILLSTREAM_REDIS_URL")
    where = " --redis-url …" if by_flag else ""  # the URL is not repeated: it may hold a password
    return f"millstream batch cancel {shlex.quote(str(journal.out))}{where}"


async def _cancel(stack: Stack, journal: Journal) -> Cancelled:
    async with AsyncClient(stack.url) as client:
        return await cancel_jobs(client, journal, {**journal.notes.left, **journal.notes.under_way})


def _counts(done: Cancelled) -> str:
    unknown = f", {done.unknown:,} not known to this server" if done.unknown else ""
    soon = "its worker ends it soon" if done.running == 1 else "their workers end them soon"
    return (
        f"{done.cancelled:,} cancelled, {done.ended:,} had ended before, "
        f"{done.running:,} still running ({soon}){unknown}"
    )
