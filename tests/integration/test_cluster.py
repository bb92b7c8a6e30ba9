"""A queue of several shards over the nodes of a Cluster. Slots that move under load: the failure suite."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.cluster import Cluster
from support.servers.servers import KINDS, require
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


@pytest.fixture(params=KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    require(request.param)
    with Cluster(request.param, appendonly="yes", appendfsync="always") as cluster:
        yield cluster


def shard(number: int) -> ShardKeys:
    return QueueKeys("default", sharded=True).shard(number)


async def test_a_queue_over_all_nodes(cluster: Cluster, tokenizer: Path, tmp_path: Path) -> None:
    """A log is whole on the node that it has moved to; the control channel, too, is listened to where it has
    gone."""
    assert len({cluster.owner(shard(n).tag).port for n in range(SHARDS)}) == len(cluster.servers)
    work = Work(cluster.url, tokenizer, tmp_path, shards=SHARDS, rows=JOBS)
    async with (
        AsyncClient(cluster.url, options=ClientOptions(shards=SHARDS)) as client,
        Endpoint.of(cluster.url).commands("inspector", retries=3) as inspector,
    ):
        # nothing but its message can tell of a cancellation
        async with work(lease_s=600.0, renew_s=300.0) as worker:
            followers = await followed(client, JOBS, TOKENS)
            await assert_whole(client, followers, TOKENS)
            for number in range(SHARDS):
                assert await leftovers(inspector, shard(number)) == []
            first = followers[0].job_id
            keys = shard(shard_of(first))
            await asyncio.to_thread(cluster.move_slot, keys.tag)
            assert await streamed_text(client, first) == counted(2, TOKENS)
            assert (await read_log(inspector, keys, first))[-1].kind == "e"

            work.hold(2)
            [running] = await followed(client, 1, TOKENS, begun=True)
            keys = shard(shard_of(running.job_id))
            await asyncio.to_thread(cluster.move_slot, keys.tag)
            node = cluster.owner(keys.tag)

            async def listened_to() -> bool:
                return (await asyncio.to_thread(node.ask, "PUBSUB", "SHARDNUMSUB", keys.control))[1] == 1

            await until(listened_to)
            await client.cancel(running.job_id)
            await until(lambda: worker.metric("requests_total", state="cancelled") == 1)
            await running.task
        info = await read_queue(inspector, "default")
    assert info is not None
    assert (info.shards, info.pubsub) == (SHARDS, PubSub.SHARDED)
