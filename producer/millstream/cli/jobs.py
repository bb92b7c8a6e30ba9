"""`millstream submit | stream | result | cancel | status`: single jobs, by id, from any process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, TypeVar

import typer

from millstream.cli.conduct import load_model, outlasting, reported, warn_if_not_durable, warn_if_unserved
from millstream.cli.interrupts import run_async
from millstream.cli.job_status import print_status
from millstream.cli.options import (
    AsJson,
    DurabilityOf,
    DurabilityTimeout,
    JobId,
    Model,
    Queue,
    RedisUrl,
    Replicas,
)
from millstream.cli.stack import Stack, choose_model, open_stack
from millstream.cli.terminal import answers, print_json, say
from millstream.cli.transcript import Follower, print_result
from millstream.client.async_client import AsyncClient
from millstream.client.options import ClientOptions, check_wait
from millstream.errors import InvalidRequest, NotReady
from millstream.wire.durability import Durability
from millstream.wire.keys import Lane
from millstream.wire.messages import State
from millstream.wire.sampling import SamplingParams

T = TypeVar("T")


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
    id: Annotated[str | None, typer.Option(help="Your own id: the same id again is the same job.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="The answer ends after so many tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Text to end before; repeatable.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another sampling parameter, e.g. top_p=0.9; repeatable."),
    ] = None,
    lane: Annotated[Lane, typer.Option(help="Workers serve interactive before batch.")] = Lane.INTERACTIVE,
    deadline_s: Annotated[float | None, typer.Option(help="Seconds until the job expires.")] = None,
    tenant: Annotated[str, typer.Option(help="For whom: fairness and cached prefixes are per tenant.")] = "",
    follow: Annotated[bool, typer.Option("--stream", help="Print the tokens as they come.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Print the result when it is there.")] = False,
    durability: DurabilityOf = Durability.NONE,
    replicas: Replicas = None,
    durability_timeout_s: DurabilityTimeout = 5.0,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Queue a message and print the job's id; with --stream or --wait, its answer."""
    place = _Place(redis_url, queue)
    with reported(as_json, place.how_to_go_on):
        place.options = ClientOptions(
            durability=durability, durability_replicas=replicas, durability_timeout_s=durability_timeout_s
        )
        fields: dict[str, Any] = {
            **_input(text, raw=raw, system=system, chat_template_kwargs=chat_template_kwargs),
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
        fields = _parameters(param or []) | given

        async def work(stack: Stack, client: AsyncClient) -> None:
            job = await client.submit(**fields)
            place.job_id = job.id
            follower = place.follower = Follower(job.id, as_json=as_json) if follow else None
            warn_if_not_durable(job)
            if follow or wait:
                say(f"job {job.id}")
                await warn_if_unserved(stack, queue, job.id)
                await load_model(stack)
            elif as_json:
                shown = ("id", "state", "created", "durability", "replicas")
                print_json({name: getattr(job, name) for name in shown})
            else:
                answers.out(job.id)
                if not redis_url:
                    say(f"it waits for a worker; for one, and the answer: millstream result {job.id} --wait")
            if follower is not None:
                await follower.follow(client)
            elif wait:
                print_result(job.id, await client.wait(job.id), as_json=as_json)

        place.run(work, model, with_worker=follow or wait)


def stream(
    job_id: JobId,
    cursor: Annotated[str | None, typer.Option(help="Go on after this event; without it, all.")] = None,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Print a job's tokens as they come, from the start or after a cursor. Ctrl-C leaves the job running."""
    place = _Place(redis_url, queue, job_id, Follower(job_id, cursor, as_json=as_json))
    with reported(as_json, place.how_to_go_on):

        async def work(stack: Stack, client: AsyncClient) -> None:
            # an unknown id is reported before a model is loaded for it
            now = await outlasting(lambda: client.status(job_id))
            if not now.state.terminal:
                await warn_if_unserved(stack, queue, now.id)
            await load_model(stack)
            assert place.follower is not None, "set above"
            await place.follower.follow(client)

        place.run(work, model, with_worker=True)


def result(
    job_id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end.")] = False,
    timeout_s: Annotated[float | None, typer.Option(help="Wait no longer than this.")] = None,
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Queue = "default",
    as_json: AsJson = False,
) -> None:
    """Print a job's result; without --wait only if it has ended."""
    place = _Place(redis_url, queue, job_id)
    with reported(as_json, place.how_to_go_on):
        check_wait("--timeout-s", timeout_s)

        async def work(stack: Stack, client: AsyncClient) -> None:
            try:
                outcome = await outlasting(lambda: client.result(job_id), timeout_s if wait else 0.0)
            except NotReady as waiting:
                if not wait:
                    raise
                await warn_if_unserved(stack, queue, waiting.job_id)
                await load_model(stack)
                outcome = await client.wait(job_id, timeout_s)
            print_result(job_id, outcome, as_json=as_json)

        place.run(work, model, with_worker=wait)


def cancel(
    job_id: JobId, redis_url: RedisUrl = None, queue: Queue = "default", as_json: AsJson = False
) -> None:
    """Cancel a job: at once if it waits, soon if it runs; one that has ended stays as it is."""
    place = _Place(redis_url, queue)
    with reported(as_json, place.how_to_go_on):

        async def work(_: Stack, client: AsyncClient) -> None:
            outcome = await client.cancel(job_id)
            if as_json:
                print_json({"id": job_id, "outcome": outcome})
            else:
                answers.out(f"{job_id}: {_CANCELLED[outcome]}")

        place.run(work, None, with_worker=False)


def status(
    job_id: JobId, redis_url: RedisUrl = None, queue: Queue = "default", as_json: AsJson = False
) -> None:
    """Say where a job stands."""
    place = _Place(redis_url, queue)
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


COMMANDS: tuple[Callable[..., None], ...] = (submit, stream, result, cancel, status)
_CANCELLED = {
    "cancelled": "cancelled",
    "requested": "is running; its worker ends it soon",
    "terminal": "had ended before",
}


@dataclass(slots=True, eq=False)
class _Place:
    """Where a command's job is, and how far it was followed: what to tell whoever interrupts it."""

    redis_url: str | None
    queue: str
    job_id: str = ""
    follower: Follower | None = None
    options: ClientOptions = field(default_factory=ClientOptions)

    def run(
        self,
        work: Callable[[Stack, AsyncClient], Awaitable[None]],
        model: str | None,
        *,
        with_worker: bool,
    ) -> None:
        """Do the work with a client of the queue, on the given server or an embedded one."""
        url = self.redis_url or None
        local = choose_model(url, model, say) if with_worker or url else None
        with open_stack(url, local, say=say, queue=self.queue) as stack:
            run_async(self._connected(stack, work))

    async def _connected(self, stack: Stack, work: Callable[[Stack, AsyncClient], Awaitable[None]]) -> None:
        async def connected() -> None:
            async with AsyncClient(stack.url, queue=self.queue, options=self.options) as client:
                await work(stack, client)

        await stack.guard(connected())

    def how_to_go_on(self) -> str:
        if not self.job_id:
            return "interrupted"
        where = "" if self.queue == "default" else f" --queue {self.queue}"
        if self.redis_url and self.redis_url != os.environ.get("MILLSTREAM_REDIS_URL"):
            where += " --redis-url …"  # not repeated: it may hold a password
        if self.follower is None:
            return f"interrupted; the job goes on: millstream result {self.job_id} --wait{where}"
        cursor = f" --cursor {self.follower.cursor}" if self.follower.cursor else ""
        return f"interrupted; the job goes on: millstream stream {self.job_id}{cursor}{where}"


def _input(given: str, *, raw: bool, system: str | None, chat_template_kwargs: str | None) -> dict[str, Any]:
    """One user message, or with `raw` the text to continue."""
    text = _standard_input() if given == "-" else given
    if not text:
        raise InvalidRequest("TEXT", text, "is empty; give at least one word")
    if raw:
        of_chat = {"--system": system, "--chat-template-kwargs": chat_template_kwargs}
        for option, value in of_chat.items():
            if value is not None:
                raise InvalidRequest(option, value, "is for the chat template; leave it out with --raw")
        return {"prompt": text}
    before = [] if system is None else [{"role": "system", "content": system}]
    return {
        "messages": [*before, {"role": "user", "content": text}],
        "chat_template_kwargs": _template_kwargs(chat_template_kwargs),
    }


def _template_kwargs(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"is no JSON ({error}); write an object"
        raise InvalidRequest("--chat-template-kwargs", text, problem) from error


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequest("-", error.object[:40], "standard input is not UTF-8; convert it") from error


def _parameters(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that is no JSON is a text."""
    parameters: dict[str, Any] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidRequest("--param", pair, "write NAME=VALUE")
        if name not in SamplingParams.model_fields:
            known = ", ".join(SamplingParams.model_fields)
            raise InvalidRequest("--param", name, f"no such sampling parameter; there are {known}")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters
