"""A queue's metadata and its workers' heartbeats."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import redis.asyncio
from support.wire.desk import Desk

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.wire.calls import join, run
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.state.heartbeat import Heartbeat, beat, models_of, read_workers
from millstream.wire.state.queue_info import PubSub, QueueInfo, open_queue, read_queue
from millstream.wire.versions import TAKEN


async def test_the_first_use_settles_what_a_queue_is(redis_client: redis.asyncio.Redis) -> None:
    assert await read_queue(redis_client, "docs") is None
    created = await open_queue(redis_client, "docs", shards=4, pubsub=PubSub.SHARDED)
    assert created == QueueInfo(4, PubSub.SHARDED, TAKEN.low, TAKEN.high)
    assert await open_queue(redis_client, "docs") == created
    assert await read_queue(redis_client, "docs") == created
    assert await open_queue(redis_client, "other") == QueueInfo(1, PubSub.PLAIN, TAKEN.low, TAKEN.high)


async def test_only_one_of_many_first_users_settles_it(redis_client: redis.asyncio.Redis) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(redis_client, shards)) for shards in range(1, 9)]
    settled = [task.result() for task in tasks if task.result()]
    assert len(settled) == 1
    assert settled[0] == await read_queue(redis_client, "docs")


async def attempt(client: redis.asyncio.Redis, shards: int) -> QueueInfo | None:
    try:
        return await open_queue(client, "docs", shards=shards)
    except QueueMismatch:
        return None


async def test_a_mismatch_names_both_values(redis_client: redis.asyncio.Redis) -> None:
    await open_queue(redis_client, "docs", shards=4)
    with pytest.raises(QueueMismatch, match="'docs' was created with shards 4, not 2; set shards to 4"):
        await open_queue(redis_client, "docs", shards=2)
    with pytest.raises(QueueMismatch, match="created with pubsub plain, not sharded"):
        await open_queue(redis_client, "docs", pubsub=PubSub.SHARDED)
    assert (await open_queue(redis_client, "docs", shards=4, pubsub=PubSub.PLAIN)).shards == 4


@pytest.mark.parametrize("shards", [0, -1, 1025])
async def test_a_queue_has_a_shard(redis_client: redis.asyncio.Redis, shards: int) -> None:
    with pytest.raises(InvalidRequest, match="shards"):
        await open_queue(redis_client, "docs", shards=shards)
    assert await read_queue(redis_client, "docs") is None


@pytest.mark.parametrize(
    "fields",
    [
        {"shards": "2"},
        {"shards": "x", "pubsub": "plain"},
        {"shards": "0", "pubsub": "plain", "version_min": "1", "version_max": "1"},
        {"shards": "9" * 18, "pubsub": "plain", "version_min": "1", "version_max": "1"},
        {"shards": "1", "pubsub": "plain", "version_min": "7", "version_max": "1"},
    ],
)
async def test_damaged_metadata_is_a_protocol_error(
    redis_client: redis.asyncio.Redis, fields: dict[str, str]
) -> None:
    await redis_client.hset(QueueKeys("docs").meta, mapping=fields)
    with pytest.raises(ProtocolError, match="metadata is damaged"):
        await open_queue(redis_client, "docs")


async def test_metadata_of_another_type_is_named(redis_client: redis.asyncio.Redis) -> None:
    await redis_client.set("{ms:docs}:meta", "x")
    for reading in (open_queue(redis_client, "docs"), read_queue(redis_client, "docs")):
        with pytest.raises(ProtocolError, match=r"the key \{ms:docs\}:meta is no hash; delete or rename it"):
            await reading


async def test_living_workers_are_read_by_name(desk: Desk) -> None:
    assert await read_workers(desk.redis, desk.keys) == []
    here, there = Heartbeat("b-1", model="tiny", max_rows=8, rows_running=3), Heartbeat("a-1", model="tiny")
    await desk.redis.xgroup_createconsumer(desk.keys.lanes[0], GROUP, "b-1")
    for name in ("a-1", "b-1", "gone-1"):
        await desk.redis.xgroup_createconsumer(desk.keys.lanes[1], GROUP, name)
    for one in (here, there):
        await run(desk.redis, beat(desk.keys, one, ttl_ms=60_000))
    await desk.run(desk.releasing(await desk.begin()))  # the consumer of what was given back is no worker
    found = await read_workers(desk.redis, desk.keys)
    assert [replace(one, sent_ms=0, ttl_ms=0) for one in found] == [there, here]


async def test_a_heartbeat_replaces_the_one_before(desk: Desk) -> None:
    await run(desk.redis, beat(desk.keys, Heartbeat("a-1", model="tiny", rows_running=3), ttl_ms=60_000))
    await desk.redis.hset(desk.keys.worker("a-1"), "added_by_a_newer_version", "x")
    await desk.redis.xgroup_createconsumer(desk.keys.lanes[0], GROUP, "a-1")
    assert (await read_workers(desk.redis, desk.keys))[0].rows_running == 3
    await run(desk.redis, beat(desk.keys, Heartbeat("a-1", model="tiny"), ttl_ms=60_000))
    [again] = await read_workers(desk.redis, desk.keys)
    assert replace(again, sent_ms=0, ttl_ms=0) == Heartbeat("a-1", model="tiny")
    assert 0 < await desk.redis.pttl(desk.keys.worker("a-1")) <= 60_000
    assert not await desk.redis.hexists(desk.keys.worker("a-1"), "added_by_a_newer_version")


async def test_a_damaged_heartbeat_says_what_it_can(desk: Desk) -> None:
    for name, field in (("a-1", "max_rows"), ("b-1", "output_per_s"), ("c-1", "version_max")):
        await desk.redis.xgroup_createconsumer(desk.keys.lanes[0], GROUP, name)
        fields = {"name": name, "model": "m", "rows_running": 3, field: "nan"}
        await desk.redis.hset(desk.keys.worker(name), mapping=fields)
    window = {"name": "d-1", "model": "m", "version_min": 7, "version_max": 1}
    await desk.redis.xgroup_createconsumer(desk.keys.lanes[0], GROUP, "d-1")
    await desk.redis.hset(desk.keys.worker("d-1"), mapping=window)
    expected = [Heartbeat(name, 1, 1, model="m", rows_running=3) for name in ("a-1", "b-1")]
    assert await read_workers(desk.redis, desk.keys) == expected  # what the others take nobody knows


async def test_a_worker_s_oldest_jobs_are_those_of_all_shards(redis_client: redis.asyncio.Redis) -> None:
    shards = [QueueKeys("docs").shard(number) for number in range(3)]
    for keys, since_ms in zip(shards, (7, 5, 0), strict=True):
        await run(redis_client, join(keys, owner="a-1"))
        await run(
            redis_client, beat(keys, Heartbeat("a-1", model="m", oldest_batch_ms=since_ms), ttl_ms=60_000)
        )
    [worker] = await read_workers(redis_client, *shards)
    assert (worker.oldest_ms("batch"), worker.oldest_ms("interactive")) == (5, 0)


def test_models_are_counted_by_digest_or_else_by_name() -> None:
    def beat(model: str, digest: str) -> Heartbeat:
        return Heartbeat("w", model=model, model_digest=digest)

    assert models_of([]) == models_of([beat("", "")]) == {}
    told = models_of([beat("a", "1"), beat("other name", "1"), beat("a", "2")])
    assert told == {"1": "other name", "2": "a"}
    assert models_of([beat("a", "1"), beat("a", "")]) == {"1": "a"}
    assert models_of([beat("a", "1"), beat("b", "")]) == {"1": "a", "b": "b"}
