"""The proxy that makes lines bad: each kind of line does to real clients what it says, and heals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from redis.exceptions import ConnectionError, RedisError, TimeoutError
from support.servers.proxy import Line, Proxy, Weather
from support.servers.servers import Server
from support.workers.counting_worker import until

from millstream.wire.connection import Endpoint


@pytest.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey.port, random.Random(7)) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[redis.asyncio.Redis]:
    """One connection, no retries, and an answer within half a second or an error."""
    client = Endpoint.of(proxy.url).commands("proxied", connections=1, timeout_s=0.5)
    await client.ping()
    yield client
    await client.aclose()


@pytest.fixture
async def direct(valkey: Server) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(valkey.url)
    yield client
    await client.aclose()


@pytest.mark.parametrize("line", [Line.LOSE_REPLIES, Line.CUT_REPLIES])
async def test_a_request_arrives_whose_answer_is_lost_or_cut(
    line: Line, proxy: Proxy, client: redis.asyncio.Redis, direct: redis.asyncio.Redis
) -> None:
    await direct.set("key", "x" * 1000)
    proxy.turn(Weather(line))
    with pytest.raises(ConnectionError):
        await client.getset("key", "new")
    assert await direct.get("key") == b"new"
    proxy.heal()
    assert await client.getset("key", "later") == b"new"
    assert proxy.seen[line] == 1


async def test_the_answer_of_a_read_that_waited_before_is_lost_too(
    proxy: Proxy, client: redis.asyncio.Redis, direct: redis.asyncio.Redis
) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(outcome(client.blpop(["list"], timeout=0)))

        async def waits() -> bool:
            return bool((await direct.info("clients"))["blocked_clients"])

        await until(waits)
        proxy.turn(Weather(Line.LOSE_REPLIES))
        await direct.rpush("list", "taken")
    assert isinstance(waiting.result(), ConnectionError)
    assert await direct.llen("list") == 0


async def test_a_black_hole_swallows_old_and_new_connections(
    proxy: Proxy, client: redis.asyncio.Redis, direct: redis.asyncio.Redis
) -> None:
    proxy.turn(Weather(Line.BLACK_HOLE))
    for _ in range(2):  # the first on the connection that was there
        with pytest.raises(TimeoutError):
            await client.set("key", "never")
    proxy.heal()
    assert await client.set("key", "at last")
    assert await direct.get("key") == b"at last"


async def test_a_stranded_connection_stays_open_at_both_ends(
    proxy: Proxy, client: redis.asyncio.Redis, direct: redis.asyncio.Redis
) -> None:
    assert proxy.strand() == 1
    with pytest.raises(TimeoutError):
        await client.set("key", "never")
    proxy.heal()
    assert await client.set("key", "on a new one")
    names = [row["name"] for row in await direct.client_list()]
    assert names.count("proxied") == 2  # the server still believes in the first
    assert proxy.reset_stranded() == 1

    async def noticed() -> bool:
        return [row["name"] for row in await direct.client_list()].count("proxied") == 1

    await until(noticed)


async def test_cuts_concern_the_share_that_is_asked_for(proxy: Proxy) -> None:
    clients = await connected(proxy, 20)
    some = proxy.cut(0.5)
    assert 0 < some < 20
    assert proxy.cut() == 20 - some
    for one in clients:
        await one.aclose()


async def connected(proxy: Proxy, count: int) -> list[redis.asyncio.Redis]:
    clients = [Endpoint.of(proxy.url).commands(f"client-{n}", connections=1) for n in range(count)]
    for one in clients:
        await one.ping()
    return clients


async def outcome(reply: object) -> object:
    """The answer, or the error that came in its place."""
    try:
        return await reply  # type: ignore[misc]
    except RedisError as error:
        return error
