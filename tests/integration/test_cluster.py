"""A queue of several shards over the nodes of a Cluster: clients and workers while slots move and nodes
that go away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.cluster import Cluster
from support.servers.servers import KINDS, Server, require
from support.workers.counting_worker import counted, leftovers, streamed_text, until
from support.workers.followers import assert_whole, followed
from support.workers.work import Work

from millstream import AsyncClient, ClientOptions
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys, ShardKeys, shard_of
from millstream.wire.messages.record import read_log
from millstream.wire.state.queue_info import PubSub, read_queue

pytestmark = pytest.mark.alone
SHARDS = 6
JOBS = 24
TOKENS = 12
OPTIONS = ClientOptions(shards=SHARDS)


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    require(request.param)
    with Cluster(request.param, appendonly="yes", appendfsync="always") as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.flush()
    return running


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.url, options=OPTIONS) as client:
        yield client


@pytest.fixture
def work(cluster: Cluster, tokenizer: Path, tmp_path: Path) -> Work:
    return Work(cluster.url, tokenizer, tmp_path, shards=SHARDS, rows=JOBS)


def shard(number: int) -> ShardKeys:
    return QueueKeys("default", sharded=True).shard(number)


def owner(cluster: Cluster, job_id: str) -> Server:
    return cluster.owner(shard(shard_of(job_id)).tag)


@asynccontextmanager
async def inspecting(cluster: Cluster) -> AsyncIterator[redis.asyncio.Redis]:
    inspector = Endpoint.of(cluster.url).commands("inspector", retries=3)
    yield inspector
    await inspector.aclose()


async def assert_nothing_left(cluster: Cluster) -> None:
    async with inspecting(cluster) as inspector:
        for number in range(SHARDS):
            assert await leftovers(inspector, shard(number)) == []


async def test_a_queue_over_all_nodes(cluster: Cluster, client: AsyncClient, work: Work) -> None:
    """And a log is whole on the node that it has moved to."""
    assert len({cluster.owner(shard(n).tag).port for n in range(SHARDS)}) == len(cluster.servers)
    async with work():
        followers = await followed(client, JOBS, TOKENS)
        await assert_whole(client, followers, TOKENS)
    await assert_nothing_left(cluster)
    first = followers[0].job_id
    await asyncio.to_thread(cluster.move_slot, shard(shard_of(first)).tag)
    assert await streamed_text(client, first) == counted(2, TOKENS)
    async with inspecting(cluster) as inspector:
        log = await read_log(inspector, shard(shard_of(first)), first)
        info = await read_queue(inspector, "default")
    assert log[-1].kind == "e"
    assert info is not None
    assert (info.shards, info.pubsub) == (SHARDS, PubSub.SHARDED)


async def test_a_cancellation_follows_the_slot(cluster: Cluster, client: AsyncClient, work: Work) -> None:
    """The control channel, too, is listened to where it has gone."""
    work.hold(2)
    async with work(lease_s=600.0, renew_s=300.0) as worker:  # nothing but the message can tell
        [follower] = await followed(client, 1, TOKENS, begun=True)
        tag = shard(shard_of(follower.job_id)).tag
        await asyncio.to_thread(cluster.move_slot, tag)
        node = owner(cluster, follower.job_id)

        async def listened_to() -> bool:
            channel = f"{tag}:control"
            return (await asyncio.to_thread(node.ask, "PUBSUB", "SHARDNUMSUB", channel))[1] == 1

        await until(listened_to)
        await client.cancel(follower.job_id)
        await until(lambda: worker.metric("requests_total", state="cancelled") == 1)
        await follower.task
