"""`millstream dead list | show | requeue | drop`: jobs that were given up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from millstream.cli.display.dead_letter_view import as_mapping, print_letter, print_line
from millstream.cli.display.terminal import answers, complain, print_json, say
from millstream.cli.shared.command_run import reported, run_with_client
from millstream.cli.shared.exits import exit_code
from millstream.cli.shared.help import HelpCommand, HelpGroup
from millstream.cli.shared.shared_options import AsJson, Queue, RedisUrl
from millstream.client.async_client import AsyncClient
from millstream.client.session.job_status import JobStatus
from millstream.errors import Conflict, InvalidRequest, MillstreamError, NotDead, NotFound, ProtocolError
from millstream.wire.state.dead_letter import DeadLetter

app = typer.Typer(cls=HelpGroup, help="Jobs that were given up: dead letters.", no_args_is_help=True)

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Ids of letters, as `list` prints them, or of jobs.")
]
All = Annotated[bool, typer.Option("--all", help="All letters there are now.")]
REFUSED = (NotDead, InvalidRequest, Conflict)  # for one letter: the others continue


@app.command("list", cls=HelpCommand)
def list_letters(
    limit: Annotated[int, typer.Option(min=1, help="Most letters to list; the newest first.")] = 50,
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """List the dead letters, the newest first: id, time, reason, attempts, deaths, size, job."""

    async def work(client: AsyncClient) -> None:
        count = 0
        async for letter in client.dead_letters(limit):
            count += 1
            if as_json:
                print_json(as_mapping(letter))
            else:
                print_line(letter)
        if not count:
            say(f"no dead letters in the queue {queue!r}")

    with reported(as_json, _interrupted):
        run_with_client(redis_url, queue, work)


@app.command(cls=HelpCommand)
def show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="Id of a letter or a job.")],
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Print one dead letter and its request; long texts are cut, with --json they are whole."""

    async def work(client: AsyncClient) -> None:
        letter = await client.dead_letter(letter_id)
        status = await _status(client, letter)
        if as_json:
            print_json(as_mapping(letter, status))
        else:
            print_letter(letter, status)

    with reported(as_json, _interrupted):
        run_with_client(redis_url, queue, work)


async def _status(client: AsyncClient, letter: DeadLetter) -> JobStatus | None:
    """The ended job's status; None if it has expired, never was one, or is damaged."""
    try:
        return await client.status(letter.job_id or "")
    except (NotFound, ProtocolError):
        return None


@app.command(cls=HelpCommand)
def requeue(
    ids: Ids = None,
    everything: All = False,
    wait_s: Annotated[float, typer.Option(help="How long to wait for room in a full queue.")] = 0.0,
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Submit dead letters once more, each as a new job without a deadline; prints the new ids.

    A letter is deleted when its job is accepted. Interrupted and repeated, no job is queued twice.
    """

    async def act(client: AsyncClient, letter_id: str) -> dict[str, Any]:
        job = await client.requeue(letter_id, wait_s=wait_s)
        return {"id": letter_id, "requeued_as": job.id, "state": job.state}

    _each(ids, everything, redis_url, queue, act, as_json=as_json, shown="requeued_as", jobs_only=True)


@app.command(cls=HelpCommand)
def drop(
    ids: Ids = None,
    everything: All = False,
    redis_url: RedisUrl = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Delete dead letters."""

    async def act(client: AsyncClient, letter_id: str) -> dict[str, Any]:
        await client.drop_dead(letter_id)
        return {"id": letter_id, "dropped": True}

    _each(ids, everything, redis_url, queue, act, as_json=as_json, shown="id", jobs_only=False)


def _each(
    ids: list[str] | None,
    everything: bool,
    redis_url: str | None,
    queue: str,
    act: Callable[[AsyncClient, str], Awaitable[dict[str, Any]]],
    *,
    as_json: bool,
    shown: str,
    jobs_only: bool,
) -> None:
    """Apply the action to each. A refused one is reported and does not end the others; its code is the
    command's.
    """
    refused: list[MillstreamError] = []

    async def work(client: AsyncClient) -> None:
        for letter_id in ids or await _all(client, jobs_only=jobs_only):
            try:
                done = await act(client, letter_id)
            except REFUSED as error:
                refused.append(error)
                if as_json:
                    print_json({"id": letter_id, "error": str(error)})
                else:
                    complain(str(error))
                continue
            if as_json:
                print_json(done)
            else:
                answers.out(done[shown])

    if bool(ids) == everything:
        raise typer.BadParameter("give either ids or --all", param_hint="ID")
    with reported(as_json, _interrupted):
        run_with_client(redis_url, queue, work)
    if refused:
        raise typer.Exit(exit_code(refused[0]))


async def _all(client: AsyncClient, *, jobs_only: bool) -> list[str]:
    found = [letter async for letter in client.dead_letters()]
    taken = [letter for letter in found if letter.job_id or not jobs_only]
    if len(taken) < len(found):
        say(f"{len(found) - len(taken)} letters are no jobs and stay; `dead drop` deletes them")
    return [letter.id for letter in taken]


def _interrupted() -> str:
    return "interrupted; the same command again continues"
