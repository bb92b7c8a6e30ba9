"""A queue of several shards over the nodes of a Cluster: clients and workers while slots move and nodes
that go away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.servers.cluster import Cluster, Migration
from support.servers.servers import KINDS, require
from support.workers.counting_worker import (
    counted,
    leftovers,
    model_name,
    serving,
    streamed_text,
    until,
    worker_process,
)

from millstream import AsyncClient, ClientOptions, InvalidRequest, Result, TokenEvent
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys, ShardKeys
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


def shard(number: int) -> ShardKeys:
    return QueueKeys("default", sharded=True).shard(number)


class Readers:
    """A stream of every job; each ends with its result's text, and no entry is missing or comes twice."""

    def __init__(self, client: AsyncClient, job_ids: list[str]) -> None:
        self.client = client
        self.job_ids = job_ids
        self.texts = dict.fromkeys(job_ids, "")
        self.seqs: dict[str, list[int]] = {job_id: [] for job_id in job_ids}
        self.tasks = [asyncio.ensure_future(self._read(job_id)) for job_id in job_ids]

    async def _read(self, job_id: str) -> None:
        async for event in self.client.stream(job_id):
            self.texts[job_id] += event.text
            if isinstance(event, TokenEvent):
                self.seqs[job_id].append(event.seq)

    async def all_have_text(self) -> bool:
        return all(self.texts.values())

    async def assert_whole(self, *, attempts: int | None = 1) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self.tasks)
        results = await self.client.wait_many(self.job_ids, timeout_s=60)
        for number, job_id in enumerate(self.job_ids):
            result = results[job_id]
            assert isinstance(result, Result)
            assert result.choices[0].text == self.texts[job_id] == counted(number + 2, TOKENS)
            assert self.seqs[job_id] == list(range(1, len(self.seqs[job_id]) + 1))
            assert attempts is None or result.attempts == attempts


async def submitted(client: AsyncClient, count: int = JOBS) -> list[str]:
    lanes = ("interactive", "batch")
    jobs = await client.submit_many(
        {"prompt": f"w{n + 1}", "max_tokens": TOKENS, "stream": True, "lane": lanes[n % 2]}
        for n in range(count)
    )
    return [job.id for job in jobs]


async def assert_nothing_left(cluster: Cluster) -> None:
    redis = Endpoint.of(cluster.url).commands("inspector", retries=3)
    for number in range(SHARDS):
        assert await leftovers(redis, shard(number)) == []
    await redis.aclose()


async def test_a_queue_over_all_nodes(cluster: Cluster, client: AsyncClient, tokenizer: Path) -> None:
    assert len({cluster.owner(shard(n).tag).port for n in range(SHARDS)}) == len(cluster.servers)
    async with serving(cluster.url, model_name(tokenizer), shards=SHARDS):
        readers = Readers(client, await submitted(client))
        await readers.assert_whole()
    await assert_nothing_left(cluster)
    redis = Endpoint.of(cluster.url).commands("inspector")
    info = await read_queue(redis, "default")
    assert info is not None
    assert (info.shards, info.pubsub) == (SHARDS, PubSub.SHARDED)
    await redis.aclose()


async def test_plain_publishing_is_refused(cluster: Cluster) -> None:
    async with AsyncClient(cluster.url, options=ClientOptions(pubsub=PubSub.PLAIN)) as client:
        with pytest.raises(InvalidRequest, match=r"pubsub: .* leave it unset"):
            await client.submit("w1")


async def test_durability_is_that_of_each_node(cluster: Cluster) -> None:
    """A wait speaks for what its connection wrote: there is one behind each shard's submits."""
    options = ClientOptions(shards=SHARDS, durability_timeout_s=0.2)
    async with AsyncClient(cluster.url, options=options) as client:
        jobs = [{"prompt": f"w{n}"} for n in range(40)]
        outcomes = await client.submit_many(jobs, durability="replicas")
        assert [(job.durable, job.replicas) for job in outcomes] == [(False, 0)] * 40
        if cluster.kind == "valkey":
            await asyncio.to_thread(cluster.move_slot, shard(0).tag)
            assert all(job.durable for job in await client.submit_many(jobs, durability="aof"))
        else:
            with pytest.raises(InvalidRequest, match="WAITAOF"):
                await client.submit_many(jobs, durability="aof")


async def test_streams_go_on_while_slots_move(
    cluster: Cluster, client: AsyncClient, tokenizer: Path, gate: Path
) -> None:
    """Moves of all shards, one after the other and in steps, in the middle of all streams."""
    (gate / "4").touch()
    async with serving(cluster.url, model_name(tokenizer, gate=gate, rows=JOBS), shards=SHARDS) as worker:
        readers = Readers(client, await submitted(client))
        await until(readers.all_have_text)
        opened = await asyncio.to_thread(begin, cluster, random.Random(7))
        (gate / "4").unlink()  # tokens are appended while keys are here and there
        await asyncio.to_thread(finish, opened)
        await readers.assert_whole()
        assert worker.metric("jobs_reclaimed_total") == 0
    await assert_nothing_left(cluster)


def begin(cluster: Cluster, chance: random.Random) -> list[Migration]:
    """Of every shard, some of whose keys have gone already."""
    opened = []
    for number in range(SHARDS):
        migration = cluster.migration(shard(number).tag)
        migration.begin()
        migration.move_keys(chance.randrange(1, 9))
        opened.append(migration)
    return opened


def finish(opened: list[Migration]) -> None:
    for migration in opened:
        while migration.move_keys():
            pass
        migration.end()


async def test_slots_move_again_and_again_under_load(
    cluster: Cluster, client: AsyncClient, tokenizer: Path
) -> None:
    moving = True

    def move() -> int:
        moves = 0
        while moving:
            cluster.move_slot(shard(moves % SHARDS).tag)
            moves += 1
        return moves

    with worker_process(cluster.url, model_name(tokenizer), shards=SHARDS):
        mover = asyncio.get_running_loop().run_in_executor(None, move)
        try:
            for _ in range(2):
                readers = Readers(client, await submitted(client))
                await readers.assert_whole(attempts=None)
        finally:
            moving = False
            assert await mover > 2 * SHARDS
    await assert_nothing_left(cluster)


async def test_a_cancellation_follows_the_slot(
    cluster: Cluster, client: AsyncClient, tokenizer: Path, gate: Path
) -> None:
    """The control channel, too, is listened to where it has gone."""
    (gate / "2").touch()
    quick = {"lease_s": 600.0, "renew_s": 300.0}  # nothing but the message can tell
    async with serving(cluster.url, model_name(tokenizer, gate=gate), shards=SHARDS, **quick) as worker:
        [job_id] = await submitted(client, 1)
        readers = Readers(client, [job_id])
        await until(readers.all_have_text)
        tag = shard(int(job_id.partition("-")[0])).tag
        await asyncio.to_thread(cluster.move_slot, tag)
        owner = cluster.owner(tag)

        async def listened_to() -> bool:
            channel = f"{tag}:control"
            return (await asyncio.to_thread(owner.ask, "PUBSUB", "SHARDNUMSUB", channel))[1] == 1

        await until(listened_to)
        await client.cancel(job_id)
        await until(lambda: worker.metric("requests_total", state="cancelled") == 1)
        await asyncio.gather(*readers.tasks)


async def test_a_node_goes_and_comes_back(
    cluster: Cluster, client: AsyncClient, tokenizer: Path, gate: Path
) -> None:
    """Its shards wait for it; the others' jobs do not."""
    (gate / "4").touch()
    gone = cluster.servers[1]
    async with serving(cluster.url, model_name(tokenizer, gate=gate, rows=JOBS), shards=SHARDS):
        readers = Readers(client, await submitted(client))
        await until(readers.all_have_text)
        await asyncio.to_thread(gone.kill)
        (gate / "4").unlink()
        elsewhere = [
            job_id
            for job_id in readers.job_ids
            if cluster.owner(shard(int(job_id.partition("-")[0])).tag) is not gone
        ]
        assert 0 < len(elsewhere) < JOBS
        for place in range(len(elsewhere)):
            await client.wait(elsewhere[place], timeout_s=30)
        await asyncio.to_thread(gone.start)
        await asyncio.to_thread(cluster.wait_ok)
        await readers.assert_whole(attempts=None)
    await assert_nothing_left(cluster)


async def test_a_log_is_whole_on_the_node_that_it_has_moved_to(
    cluster: Cluster, client: AsyncClient, tokenizer: Path
) -> None:
    async with serving(cluster.url, model_name(tokenizer), shards=SHARDS):
        [job_id] = await submitted(client, 1)
        await client.wait(job_id, timeout_s=30)
    keys = shard(int(job_id.partition("-")[0]))
    await asyncio.to_thread(cluster.move_slot, keys.tag)
    text = await streamed_text(client, job_id)
    assert text == counted(2, TOKENS)
    redis = Endpoint.of(cluster.url).commands("inspector")
    assert [entry.kind for entry in await read_log(redis, keys, job_id)][-1] == "e"
    await redis.aclose()
