"""Heartbeats of workers that serve and of those that load, as readers find them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH

from millstream.wire import calls
from millstream.wire.keys import QueueKeys, ShardKeys
from millstream.wire.state.heartbeat import (
    LOADING,
    SERVING,
    STARTING,
    Heartbeat,
    beat,
    read_all_workers,
    read_workers,
    text_only_model,
)

SHARDS = [QueueKeys("docs").shard(number) for number in range(2)]


async def send(redis: Redis, shard: ShardKeys, state: str, **fields: str | int) -> None:
    one = Heartbeat("a-1", model="tiny", state=state, **fields)  # type: ignore[arg-type]
    await calls.run(redis, calls.join(shard, owner=one.name))
    await calls.run(redis, beat(shard, one, ttl_ms=3000))


@BOTH
async def test_a_worker_loads_or_serves_and_never_both(redis_client: Redis) -> None:
    for state in (LOADING, SERVING, STARTING, LOADING, SERVING):
        await send(redis_client, SHARDS[0], state, step="reading weights")
        found = await read_all_workers(redis_client, *SHARDS)
        assert [[(one.name, one.state) for one in some] for some in found] == (
            [[], [("a-1", LOADING)]] if state == LOADING else [[("a-1", state)], []]
        )
        assert await read_workers(redis_client, *SHARDS) == found[0]
    await redis_client.delete(SHARDS[0].worker("a-1"))
    assert await read_workers(redis_client, *SHARDS) == []


@BOTH
async def test_a_heartbeat_has_the_time_of_the_server(redis_client: Redis) -> None:
    for shard in SHARDS:
        await send(redis_client, shard, SERVING)
    seconds, micros = await redis_client.time()
    at_ms = seconds * 1000 + micros // 1000
    [one] = await read_workers(redis_client, *SHARDS)
    assert 0 <= (one.age_ms(at_ms) or 0) < 1000
    assert one.ttl_ms == 3000
    assert one.sent_ms == int(await redis_client.hget(SHARDS[1].worker("a-1"), "sent_ms"))  # the later one


async def test_a_worker_says_whether_it_reads_images(redis_client: Redis) -> None:
    """Older ones do not say: for them their versions do."""
    for images, stored in ((True, b"1"), (False, None)):
        await send(redis_client, SHARDS[0], SERVING, images=images)
        [one] = await read_workers(redis_client, *SHARDS)
        assert one.images is images
        assert await redis_client.hget(SHARDS[0].worker("a-1"), "images") == stored
    text = Heartbeat("a-1", model="text")
    vision, older = replace(text, images=True), replace(text, version_max=6, model="older")
    loading = replace(text, model="")
    for workers, model in (
        ([text], "text"), ([older, text], "text"), ([text, vision], ""), ([older], ""), ([], ""),
        ([text, loading], ""),
    ):  # fmt: skip
        assert text_only_model(workers) == model


@pytest.mark.parametrize(
    ("sent_ms", "age_ms", "late"),
    [(10_000, 0, False), (8500, 1500, False), (8499, 1501, True), (10_500, 0, False), (0, None, False)],
)
def test_a_late_heartbeat_is_over_half_its_time(sent_ms: int, age_ms: int | None, late: bool) -> None:
    """One of a worker's clock before ours is new; one that names no time is of an older worker."""
    one = Heartbeat("a-1", model="tiny", sent_ms=sent_ms, ttl_ms=3000)
    assert (one.age_ms(10_000), one.is_late(10_000)) == (age_ms, late)
