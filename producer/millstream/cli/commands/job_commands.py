"""`millstream submit | stream | result | cancel | status`: single jobs, by id, from any process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.commands.job_target import JobPlace
from millstream.cli.commands.submit_command import SubmitCommand, format_of, input_of, parameters_of
from millstream.cli.display.job_status_view import print_status
from millstream.cli.display.terminal import answers, print_json
from millstream.cli.display.transcript import Follower, print_result
from millstream.cli.embedded.stack import Stack
from millstream.cli.shared.command_run import load_model, outlast_outages, report, reported, warn_if_unserved
from millstream.cli.shared.shared_options import (
    AsJson,
    DurabilityOf,
    DurabilityTimeout,
    JobId,
    JobIds,
    Model,
    Queue,
    RedisUrl,
    Replicas,
)
from millstream.client.async_client import AsyncClient
from millstream.client.session.options import ClientOptions, check_wait
from millstream.errors import NotFound, NotReady
from millstream.wire.keys import Lane
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import CancelOutcome
from millstream.wire.state.durability import Durability


def submit(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A message to the model; - reads standard input.")
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message before TEXT.")] = None,
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Values for the chat template, e.g. {"enable_thinking": false} for Qwen3.'
        ),
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An image before TEXT; repeatable.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="Your own id: the same id again is the same job.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of the answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Stop before this text; repeatable.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Answer with JSON that fits this JSON schema.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Answer with one of these texts; repeatable.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Answer with a text that matches this.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another sampling parameter, e.g. top_p=0.9; repeatable."),
    ] = None,
    lane: Annotated[Lane, typer.Option(help="Workers serve interactive before batch.")] = Lane.INTERACTIVE,
    deadline_s: Annotated[float | None, typer.Option(help="Seconds until the job expires.")] = None,
    tenant: Annotated[str, typer.Option(help="Fairness and cached prefixes are per tenant.")] = "",
    follow: Annotated[bool, typer.Option("--stream", help="Print the tokens as they come.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    durability: DurabilityOf = Durability.NONE,
    replicas: Replicas = None,
    durability_timeout_s: DurabilityTimeout = 5.0,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Queue a message and print the job's id; with --stream or --wait, its answer."""
    place = JobPlace(redis_url, queue)
    with reported(as_json, place.how_to_go_on):
        place.options = ClientOptions(
            durability=durability, durability_replicas=replicas, durability_timeout_s=durability_timeout_s
        )
        fields = {
            **input_of(
                text,
                raw=raw,
                system=system,
                chat_template_kwargs=chat_template_kwargs,
                images=image or (),
            ),
            "response_format": format_of(schema, choice, regex),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop": stop,
            "id": id,
            "lane": lane,
            "deadline_s": deadline_s,
            "tenant": tenant,
            "stream": follow,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        submission = SubmitCommand(place, parameters_of(param or []) | given, follow, wait, as_json)
        place.run(submission.carry_out, model, with_worker=follow or wait)


def stream(
    job_id: JobId,
    cursor: Annotated[str | None, typer.Option(help="Continue after this event; default: all.")] = None,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Print a job's tokens as they come, from the start or after a cursor. Ctrl-C leaves the job running."""
    place = JobPlace(redis_url, queue, job_id, Follower(job_id, cursor, as_json=as_json))
    with reported(as_json, place.how_to_go_on):

        async def work(stack: Stack, client: AsyncClient) -> None:
            # an unknown id is reported before a model is loaded for it
            now = await outlast_outages(lambda: client.status(job_id))
            if not now.state.terminal:
                await warn_if_unserved(stack, queue, now.id)
            await load_model(stack)
            assert place.follower is not None, "set above"
            await place.follower.follow(client)

        place.run(work, model, with_worker=True)


def result(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end.")] = False,
    timeout_s: Annotated[float | None, typer.Option(help="Longest wait.")] = None,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Print a job's result; without --wait only if it has ended."""
    place = JobPlace(redis_url, queue, job_id)
    with reported(as_json, place.how_to_go_on):
        check_wait("--timeout-s", timeout_s)

        async def work(stack: Stack, client: AsyncClient) -> None:
            try:
                outcome = await outlast_outages(lambda: client.result(job_id), timeout_s if wait else 0.0)
            except NotReady as waiting:
                if not wait:
                    raise
                await warn_if_unserved(stack, queue, waiting.job_id)
                await load_model(stack)
                outcome = await client.wait(job_id, timeout_s)
            shown = await _full_id(client, job_id) if as_json else job_id
            print_result(shown, outcome, as_json=as_json)

        place.run(work, model, with_worker=wait)


def cancel(
    job_ids: JobIds, redis_url: RedisUrl = None, queue: Queue = "default", as_json: AsJson = False
) -> None:
    """Cancel jobs: at once one that waits, soon one that runs; one that has ended stays as it is.

    Unknown ids are reported; the other jobs are cancelled all the same, and the exit code is that of an
    unknown id.
    """
    place = JobPlace(redis_url, queue)
    unknown: list[NotFound] = []

    async def work(_: Stack, client: AsyncClient) -> None:
        for job_id, outcome in (await client.cancel_many(job_ids)).items():
            if outcome is CancelOutcome.NOT_FOUND:
                unknown.append(NotFound(job_id))
            elif as_json:
                print_json({"id": await _full_id(client, job_id), "outcome": outcome})
            else:
                answers.out(f"{job_id}: {_CANCELLED[outcome]}")

    with reported(as_json, place.how_to_go_on):
        place.run(work, None, with_worker=False)
        for error in unknown[:-1]:
            report(error, as_json)
        if unknown:
            raise unknown[-1]


def status(
    job_id: JobId, redis_url: RedisUrl = None, queue: Queue = "default", as_json: AsJson = False
) -> None:
    """Show the status of a job."""
    place = JobPlace(redis_url, queue)
    with reported(as_json, place.how_to_go_on):

        async def work(stack: Stack, client: AsyncClient) -> None:
            now = await client.status(job_id)
            if as_json:
                print_json(asdict(now))
                return
            print_status(now)
            if now.state is State.QUEUED:
                await warn_if_unserved(stack, queue, now.id)

        place.run(work, None, with_worker=False)


async def _full_id(client: AsyncClient, job_id: str) -> str:
    """For programs, as `submit` prints it; people read the id that they gave."""
    return (await client.status(job_id)).id


COMMANDS: tuple[Callable[..., None], ...] = (submit, stream, result, cancel, status)
_CANCELLED = {
    "cancelled": "cancelled",
    "requested": "is running; its worker ends it soon",
    "terminal": "had ended before",
}
