"""Submits that wait until the server's disk or its replicas have the job, and say what was reached."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from support.servers.cluster import Cluster
from support.servers.proxy import Line, Proxy, Weather, until_answered
from support.servers.servers import KINDS, Server, lasting_server

from millstream import AsyncClient, ClientOptions, Durability, InvalidRequest, NotDurable, State, Submitted
from millstream.wire.keys import QueueKeys, shard_of

SLOW = ClientOptions(durability_timeout_s=0.3)


@pytest.fixture(params=KINDS)
def master(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own: one that ever had a replica keeps the last 10 MB of its writes, an hour
    long, and would be full of them in a test of full memory."""
    with Server(request.param, repl_diskless_sync_delay="0") as master:
        yield master


@pytest.fixture
def replica(master: Server) -> Iterator[Server]:
    with Server(master.kind, replicaof=f"127.0.0.1 {master.port}") as replica:
        yield replica


async def in_sync(master: Server) -> None:
    async with redis.asyncio.Redis.from_url(master.url, socket_timeout=None) as admin:
        await admin.set("here", 1)
        assert await admin.wait(1, 30_000) == 1


@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
async def test_what_was_acknowledged_outlives_a_crash(appendfsync: str) -> None:
    with lasting_server(appendfsync=appendfsync) as server:
        async with AsyncClient(server.url) as client:
            jobs = [await client.submit("Hello", durability="aof")]
            outcomes = await client.submit_many([{"prompt": str(n)} for n in range(300)], durability="aof")
            jobs += [outcome for outcome in outcomes if isinstance(outcome, Submitted)]
            assert [job.durability for job in jobs] == [Durability.AOF] * 301
            server.kill()
            server.start()
            for job in jobs:
                job.raise_for_durability()
                assert (await client.status(job.id)).state is State.QUEUED


async def test_many_wait_side_by_side() -> None:
    """Each would else wait for its turn, and then for the disk's."""
    with lasting_server(appendfsync="everysec") as server:
        async with AsyncClient(server.url, options=ClientOptions(connections=2)) as client:
            await client.submit("warm", durability="aof")
            jobs = await asyncio.gather(*(client.submit("x", durability="aof") for _ in range(30)))
            assert all(job.durable for job in jobs)
            async with redis.asyncio.Redis.from_url(server.url) as admin:
                assert (await admin.info("stats"))["total_connections_received"] > 20


async def test_a_disk_that_is_not_synced_is_no_disk() -> None:
    with lasting_server(appendfsync="no") as server:
        async with AsyncClient(server.url, options=SLOW) as client:
            job = await client.submit("Hello", id="a", durability=Durability.AOF)
            assert (job.created, job.durability, job.wanted) == (True, Durability.NONE, Durability.AOF)
            with pytest.raises(NotDurable, match=r"0-a: queued, but durability aof was not reached in time"):
                job.raise_for_durability()
            again = await client.submit("Hello", id="a", durability="none")
            assert (again.created, again.durable) == (False, True)
            again.raise_for_durability()


async def test_a_server_that_cannot_is_told_before_anything_is_queued(
    server: Server, client: AsyncClient
) -> None:
    problem = "has no WAITAOF" if server.kind == "redis" else "keeps no append-only file"
    for submit in (client.submit("x", durability="aof"), client.submit_many([], durability="aof")):
        with pytest.raises(InvalidRequest, match=f"^durability: .*{problem}.*'aof'"):
            await submit
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        assert not await admin.keys("*lane*")
    assert (await client.submit("x")).durable


async def test_a_file_that_is_switched_off_is_seen_by_the_next_submit() -> None:
    with lasting_server(appendfsync="always") as server:
        async with (
            AsyncClient(server.url, options=ClientOptions(durability="aof")) as client,
            redis.asyncio.Redis.from_url(server.url) as admin,
        ):
            assert (await client.submit("x")).durability is Durability.AOF
            await admin.config_set("appendonly", "no")
            job = await client.submit("x")  # it was queued before the server said so
            assert (job.created, job.durable) == (True, False)
            with pytest.raises(InvalidRequest, match="appendonly"):
                await client.submit("x")


async def test_replicas_acknowledge(master: Server, replica: Server) -> None:
    await in_sync(master)
    async with AsyncClient(master.url) as client:
        job = await client.submit("Hello", id="a", durability="replicas")
        assert (job.durability, job.replicas) == (Durability.REPLICAS, 1)
        again = await client.submit("Hello", id="a", durability="replicas")  # the first answer was lost
        assert (again.created, again.durability, again.replicas) == (False, Durability.REPLICAS, 1)
    async with redis.asyncio.Redis.from_url(replica.url) as copy:
        assert await copy.hget("{ms:default:0}:job:0-a", "submits") == b"2"


async def test_a_replica_that_stands_still_is_reported_in_time(master: Server, replica: Server) -> None:
    await in_sync(master)
    assert replica.process is not None
    async with AsyncClient(master.url, options=SLOW) as client, standing_still(replica.process.pid):
        outcomes = await client.submit_many([{"prompt": "x"}, {"prompt": "y"}], durability="replicas")
        for job in outcomes:
            assert isinstance(job, Submitted)
            assert (job.created, job.durability, job.replicas) == (True, Durability.NONE, 0)
            assert (await client.status(job.id)).state is State.QUEUED


@asynccontextmanager
async def standing_still(pid: int) -> AsyncIterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_too_few_replicas_are_reported(master: Server, replica: Server) -> None:
    await in_sync(master)
    options = ClientOptions(durability="replicas", durability_replicas=2, durability_timeout_s=0.2)
    async with AsyncClient(master.url, options=options) as client:
        job = await client.submit("Hello")
        assert (job.durability, job.replicas) == (Durability.NONE, 1)
        with pytest.raises(NotDurable) as told:
            job.raise_for_durability()
        [own_id] = re.findall(r"submit it again with id='(.*)'", str(told.value))
        assert (await client.submit("Hello", id=own_id)).id == job.id


async def test_a_wait_may_take_longer_than_a_command(valkey: Server) -> None:
    options = ClientOptions(timeout_s=0.4, durability_timeout_s=0.6, durability="replicas")
    async with AsyncClient(valkey.url, options=options) as client:
        job = await client.submit("Hello")
        assert (job.created, job.durable) == (True, False)


async def test_scripts_that_the_server_forgot_are_waited_for_too(master: Server, replica: Server) -> None:
    await in_sync(master)
    async with AsyncClient(master.url) as client:
        await client.submit("Hello", durability="replicas")
        async with redis.asyncio.Redis.from_url(master.url) as admin:
            await admin.script_flush()
        assert (await client.submit("Hello", durability="replicas")).replicas == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"durability": "disk"}, "durability: must be one of none, aof, replicas"),
        ({"durability_timeout_s": 0}, "durability_timeout_s: must be at least a millisecond"),
        ({"durability_replicas": -1}, "durability_replicas: must be at least 0 for none"),
        ({"durability": "replicas", "durability_replicas": 0}, "must be at least 1 for replicas"),
    ],
)
def test_wrong_options(options: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        ClientOptions(**options)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_in_a_cluster_each_node_is_waited_for(kind: str) -> None:
    """One node has a disk that is synced, another has none: each job is as durable as its own node is."""
    durability = "aof" if kind == "valkey" else "replicas"
    with Cluster(kind, appendonly="yes", appendfsync="always") as cluster:
        if kind == "valkey":
            cluster.servers[0].ask("CONFIG", "SET", "appendfsync", "no")
        options = ClientOptions(shards=6, durability=durability, durability_timeout_s=0.3)
        async with AsyncClient(cluster.url, queue="wide", options=options) as client:
            outcomes = await client.submit_many({"prompt": "x", "id": str(n)} for n in range(60))
            jobs = [outcome for outcome in outcomes if isinstance(outcome, Submitted)]
            assert len(jobs) == 60
            for job in jobs:
                owner = cluster.owner(QueueKeys("wide").shard(shard_of(job.id)).job(job.id))
                durable = kind == "valkey" and owner is not cluster.servers[0]
                assert job.durable is durable, job
            again = await client.submit_many({"prompt": "x", "id": str(n)} for n in range(60))
            assert not any(job.created for job in again if isinstance(job, Submitted))


@pytest.mark.slow
@pytest.mark.parametrize("master", ["valkey"], indirect=True)
async def test_lost_answers_queue_nothing_twice_and_tell_nothing_wrong(
    master: Server, replica: Server
) -> None:
    await in_sync(master)
    async with Proxy(master.port, random.Random(5)) as proxy:
        async with AsyncClient(proxy.url, options=ClientOptions(durability="replicas")) as client:
            for n in range(8):
                proxy.turn(Weather(Line.LOSE_REPLIES, share=0.5))  # of the connections, those to come too
                job = await until_answered(lambda n=n: client.submit(str(n), id=str(n)))  # type: ignore[misc]
                assert (job.durability, job.replicas) == (Durability.REPLICAS, 1)
            assert proxy.seen[Line.LOSE_REPLIES] > 2
    lane = QueueKeys("default").shard(0).lane("batch")
    async with redis.asyncio.Redis.from_url(replica.url) as copy:
        assert await copy.xlen(lane) == 8
