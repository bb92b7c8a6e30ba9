"""An entry is taken over only when the same owner was seen overdue twice, one and a half renewals apart on
the scanner's own clock.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry
from support.servers.servers import Server

from millstream import AsyncClient
from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.messages.replies import LaneEntry
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.metrics import Metrics
from millstream_worker.upkeep import LeaseTimes, Reclaimer

SHARD = QueueKeys("default").shard(0)
LANE = SHARD.lane("batch")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reclaimer(redis_client: redis.asyncio.Redis, clock: Clock) -> Reclaimer:
    metrics = Metrics(CollectorRegistry())
    # Every entry is overdue for the server: what is tested is what the scanner makes of it.
    return Reclaimer(Consumer(redis_client, "scanner"), metrics, LeaseTimes(0, 10), clock)


async def deliver(server: Server, redis_client: redis.asyncio.Redis, owner: str) -> str:
    """A job that `owner` has started; answers its id."""
    async with AsyncClient(server.url) as client:
        job = await client.submit("w1")
    for lane in SHARD.lanes:
        await redis_client.xgroup_create(lane, GROUP, id="0", mkstream=True)
    [[_, [(entry_id, _)]]] = await redis_client.xreadgroup(GROUP, owner, {LANE: ">"}, count=1)
    claim = Claim(job.id, entry_id.decode(), owner)
    start = calls.start(SHARD, claim, lane="batch", nonce="n")
    assert (await calls.run(redis_client, start)).attempt == 1
    return job.id


async def test_one_sighting_is_not_enough(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    job_id = await deliver(server, redis_client, "gone")
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []
    clock.now += 14.9
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []
    clock.now += 0.2
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 0) == []
    assert [entry.job_id for entry in await reclaimer.take(SHARD, 5)] == [job_id]
    assert await reclaimer.take(SHARD, 5) == []


async def test_an_owner_has_time_to_renew_after_a_scan_that_took_long(
    server: Server, redis_client: redis.asyncio.Redis, clock: Clock
) -> None:
    """The server was stuck, and everything looks idle; the scan's answer comes as soon as it goes on."""
    await deliver(server, redis_client, "living")
    metrics = Metrics(CollectorRegistry())

    class Stuck:
        """The first answer that has entries in it comes late."""

        for_s = 60.0

        async def execute_command(self, *arguments: Any, **options: Any) -> Any:
            answer = await redis_client.execute_command(*arguments, **options)
            if answer:
                clock.now, self.for_s = clock.now + self.for_s, 0.0
            return answer

        def __getattr__(self, name: str) -> Any:
            return getattr(redis_client, name)

    reclaimer = Reclaimer(Consumer(Stuck(), "scanner"), metrics, LeaseTimes(0, 10), clock)
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []


async def test_a_new_owner_starts_the_watch_again(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    await deliver(server, redis_client, "gone")
    await reclaimer.scan(SHARD)
    [row] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    await redis_client.xclaim(LANE, GROUP, "another", 0, [row.entry_id], justid=True)
    clock.now += 15.1
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []
    clock.now += 15.1
    assert len(await reclaimer.take(SHARD, 5)) == 1


async def test_what_was_released_is_free_at_once(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer
) -> None:
    job_id = await deliver(server, redis_client, "leaving")
    [row] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    release = calls.release(SHARD, Claim(job_id, row.entry_id, "leaving", 1), lane="batch")
    await calls.run(redis_client, release)
    await reclaimer.scan(SHARD)
    entries = await reclaimer.take(SHARD, 5)
    assert [entry.job_id for entry in entries] == [job_id]
    reclaimer.ignore(SHARD, entries)
    release_again = calls.release(SHARD, Claim(job_id, row.entry_id, "scanner"), lane="batch")
    await calls.run(redis_client, release_again)
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []


async def test_no_more_is_taken_at_once_than_one_reply_should_hold(valkey: Server, clock: Clock) -> None:
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        await client.submit_many({"prompt": f"w{n}"} for n in range(70))
        for lane in SHARD.lanes:
            await direct.xgroup_create(lane, GROUP, id="0", mkstream=True)
        await direct.xreadgroup(GROUP, "gone", {LANE: ">"}, count=100)
        metrics = Metrics(CollectorRegistry())
        reclaimer = Reclaimer(Consumer(direct, "scanner"), metrics, LeaseTimes(0, 10), clock)
        await reclaimer.scan(SHARD)
        clock.now += 15.1
        assert [len(await reclaimer.take(SHARD, 100)) for _ in range(10)] == [*[8] * 8, 6, 0]


async def test_an_owner_has_time_to_renew_after_the_server_took_no_writes(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    """As while a Cluster's slot moves: what is pending can be read, and no lease renewed."""
    job_ids = [await deliver(server, redis_client, "alive")]
    async with AsyncClient(server.url) as client:
        job_ids += [(await client.submit("w1")).id for _ in range(2)]
    await redis_client.xreadgroup(GROUP, "alive", {LANE: ">"})
    await reclaimer.scan(SHARD)
    clock.now += 15.1
    await redis_client.config_set("min-replicas-to-write", 1)
    refused = await reclaimer.take(SHARD, 2)
    await redis_client.config_set("min-replicas-to-write", 0)
    assert refused == []
    assert await reclaimer.take(SHARD, 5) == []
    await reclaimer.scan(SHARD)
    clock.now += 15.1
    assert [entry.job_id for entry in await reclaimer.take(SHARD, 5)] == job_ids


async def test_a_damaged_job_keeps_nobody_from_the_others(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    async with AsyncClient(server.url) as client:
        jobs = [await client.submit(f"w{n}") for n in range(3)]
    for lane in SHARD.lanes:
        await redis_client.xgroup_create(lane, GROUP, id="0", mkstream=True)
    await redis_client.xreadgroup(GROUP, "gone", {LANE: ">"}, count=9)
    await redis_client.set(SHARD.job(jobs[0].id), "something else")
    await reclaimer.scan(SHARD)
    clock.now += 15.1
    taken = [entry.job_id for _ in range(3) for entry in await reclaimer.take(SHARD, 1)]
    assert taken == [job.id for job in jobs[1:]]


async def test_a_damaged_job_of_another_version_costs_no_scan(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    job_id = await deliver(server, redis_client, "leaving")
    [row] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    await calls.run(
        redis_client,
        calls.release(SHARD, Claim(job_id, row.entry_id, "leaving", 1), lane="batch"),
    )
    reclaimer.ignore(SHARD, [LaneEntry("batch", row.entry_id, job_id, 2, b"")])
    await redis_client.set(SHARD.job(job_id), "something else")
    for _ in range(2):
        clock.now += 15.1
        await reclaimer.scan(SHARD)
        assert await reclaimer.take(SHARD, 5) == []


async def test_own_entries_are_left_alone(
    server: Server, redis_client: redis.asyncio.Redis, reclaimer: Reclaimer, clock: Clock
) -> None:
    await deliver(server, redis_client, "scanner")
    await reclaimer.scan(SHARD)
    clock.now += 60
    await reclaimer.scan(SHARD)
    assert await reclaimer.take(SHARD, 5) == []
