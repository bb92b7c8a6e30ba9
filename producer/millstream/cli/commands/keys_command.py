"""`millstream keys add | list | revoke`: the API keys of gateways."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

import typer

from millstream.cli.display.terminal import answers, complain, print_json, say
from millstream.cli.display.times import local
from millstream.cli.embedded.stack import open_stack
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import ExitCode
from millstream.cli.shared.help import HelpCommand, HelpGroup
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.shared_options import AsJson, RedisUrl
from millstream.gateway.auth.api_keys import ApiKey, ApiKeyStore
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.wire.keys import Lane

app = typer.Typer(cls=HelpGroup, help="API keys of gateways.", no_args_is_help=True)

PerMinute = Annotated[int, typer.Option(min=0, help="0: no limit.")]


@app.command(cls=HelpCommand)
def add(
    tenant: Annotated[
        str, typer.Argument(help="Whose key it is: jobs are its, and take turns with others'.")
    ],
    queue: Annotated[list[str] | None, typer.Option(help="A queue that it may use; none: all.")] = None,
    lane: Annotated[list[Lane] | None, typer.Option(help="A lane that it may use; none: both.")] = None,
    requests_per_min: PerMinute = 0,
    tokens_per_min: Annotated[
        int, typer.Option(min=0, help="Prompt and answer, estimated; 0: no limit.")
    ] = 0,
    max_enqueued_tokens: Annotated[
        int, typer.Option(min=0, help="Of all requests under way at once; 0: no limit.")
    ] = 0,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it. It cannot be printed again: the server keeps its SHA-256 only."""
    fields = {
        "queues": tuple(queue or ()), "lanes": tuple(lane or ()), "requests_per_min": requests_per_min,
        "tokens_per_min": tokens_per_min, "max_enqueued_tokens": max_enqueued_tokens,
    }  # fmt: skip

    async def work(keyring: ApiKeyStore) -> None:
        key_id, key = await keyring.add(tenant, **fields)
        if as_json:
            print_json({"id": key_id, "tenant": tenant, "key": key})
        else:
            say(f"key {key_id} of {tenant}")
            answers.out(key)

    _run(redis_url, as_json, work)


@app.command("list", cls=HelpCommand)
def list_keys(redis_url: RedisUrl = None, as_json: AsJson = False) -> None:
    """List the keys, the oldest first: id, tenant, time, what it may use, limits."""

    async def work(keyring: ApiKeyStore) -> None:
        found = await keyring.all()
        for key_id, key in found:
            if as_json:
                print_json({"id": key_id, **key.model_dump(mode="json")})
            else:
                answers.out(f"{key_id}  {key.tenant}  {local(key.created_ms)}  {_told(key)}")
        if not found:
            say("no keys; `millstream keys add TENANT` makes one")

    _run(redis_url, as_json, work)


@app.command(cls=HelpCommand)
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, or its id as `list` prints it.")],
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: from now on gateways refuse it. Jobs under way go on."""

    async def work(keyring: ApiKeyStore) -> None:
        if not await keyring.revoke(key):
            complain("no such key; `millstream keys list` shows those there are")
            raise typer.Exit(ExitCode.NOT_FOUND)
        if as_json:
            print_json({"revoked": True})
        else:
            say("revoked")

    _run(redis_url, as_json, work)


def _told(key: ApiKey) -> str:
    limits = {
        "requests/min": key.requests_per_min,
        "tokens/min": key.tokens_per_min,
        "tokens enqueued": key.max_enqueued_tokens,
    }
    parts = [f"{limit:,} {name}" for name, limit in limits.items() if limit]
    return "; ".join([", ".join(key.queues) or "all queues", ", ".join(key.lanes) or "both lanes", *parts])


def _run(redis_url: str | None, as_json: bool, work: Callable[[ApiKeyStore], Awaitable[Any]]) -> None:
    with reported(as_json, lambda: "interrupted"), open_stack(redis_url, None) as stack:

        async def connected() -> None:
            async with aclosing(GatewayRedis(stack.url)) as redis:
                with redis.reach():
                    await work(ApiKeyStore(redis.client))

        run_async(stack.guard(connected()))
