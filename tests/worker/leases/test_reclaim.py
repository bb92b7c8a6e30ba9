"""An entry is taken over only when the same owner was seen overdue twice, one and a half renewals apart on
the scanner's own clock."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.work import LANE, SHARD

from millstream import AsyncClient
from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.metrics import Metrics
from millstream_worker.upkeep.reclaim import Reclaimer


class Scanner:
    """A reclaimer with its own clock, to which every entry is overdue by the server: what is tested is what
    it makes of that."""

    def __init__(self, redis: Any) -> None:
        self.now = 100.0
        consumer, metrics = Consumer(redis, "scanner"), Metrics(CollectorRegistry())
        self.reclaimer = Reclaimer(consumer, metrics, lease_s=0, renew_s=10, monotonic=lambda: self.now)

    async def scan(self, later_s: float = 0.0) -> None:
        self.now += later_s
        await self.reclaimer.scan(SHARD)

    async def take(self, count: int = 5) -> list[str]:
        return [entry.job_id for entry in await self.reclaimer.take(SHARD, count)]


@pytest.fixture
def scanner(redis_client: Redis) -> Scanner:
    return Scanner(redis_client)


async def delivered(client: AsyncClient, redis_client: Redis, owner: str, count: int = 1) -> list[str]:
    """Jobs that `owner` has read."""
    ids = [(await client.submit("w1", max_tokens=1)).id for _ in range(count)]  # all of them in the window
    for lane in SHARD.lanes:
        await redis_client.xgroup_create(lane, GROUP, id="0", mkstream=True)
    await redis_client.xreadgroup(GROUP, owner, {LANE: ">"})
    return ids


async def started(client: AsyncClient, redis_client: Redis, owner: str) -> Claim:
    """A job that `owner` has begun."""
    [job_id] = await delivered(client, redis_client, owner)
    [row] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    start = calls.start(SHARD, Claim(job_id, row.entry_id, owner), lane="batch", nonce="n")
    assert (await calls.run(redis_client, start)).attempt == 1
    return Claim(job_id, row.entry_id, owner, 1)


@BOTH
async def test_one_sighting_is_not_enough(client: AsyncClient, redis_client: Redis, scanner: Scanner) -> None:
    """Nor are two of one's own entries."""
    gone = await started(client, redis_client, "gone")
    mine = await client.submit("w1")
    await redis_client.xreadgroup(GROUP, "scanner", {LANE: ">"})
    await scanner.scan()
    assert await scanner.take() == []
    await scanner.scan(14.9)
    assert await scanner.take() == []
    await scanner.scan(0.2)
    assert await scanner.take(0) == []
    assert await scanner.take() == [gone.job_id]
    await scanner.scan(60)
    assert await scanner.take() == [], mine.id


async def test_an_owner_has_time_to_renew_after_a_scan_that_took_long(
    client: AsyncClient, redis_client: Redis
) -> None:
    """The server was stuck, and everything looks idle; the scan's answer comes as soon as it goes on."""
    await started(client, redis_client, "living")

    class Stuck:
        """The first answer that has entries in it comes late."""

        for_s = 60.0

        async def execute_command(self, *arguments: Any, **options: Any) -> Any:
            answer = await redis_client.execute_command(*arguments, **options)
            if answer:
                scanner.now, self.for_s = scanner.now + self.for_s, 0.0
            return answer

        def __getattr__(self, name: str) -> Any:
            return getattr(redis_client, name)

    scanner = Scanner(Stuck())
    await scanner.scan()
    assert await scanner.take() == []


@BOTH
async def test_a_new_owner_starts_the_watch_again(
    client: AsyncClient, redis_client: Redis, scanner: Scanner
) -> None:
    gone = await started(client, redis_client, "gone")
    await scanner.scan()
    await redis_client.xclaim(LANE, GROUP, "another", 0, [gone.entry_id], justid=True)
    await scanner.scan(15.1)
    assert await scanner.take() == []
    scanner.now += 15.1
    assert await scanner.take() == [gone.job_id]


@BOTH
async def test_what_was_released_is_free_at_once(
    client: AsyncClient, redis_client: Redis, scanner: Scanner
) -> None:
    """But not to one who cannot read it, whatever has become of its hash meanwhile."""
    claim = await started(client, redis_client, "leaving")
    await calls.run(redis_client, calls.release(SHARD, claim, lane="batch"))
    await scanner.scan()
    assert await scanner.take() == [claim.job_id]
    scanner.reclaimer.ignore(SHARD, [LaneEntry("batch", claim.entry_id, claim.job_id, 2, b"")])
    again = Claim(claim.job_id, claim.entry_id, "scanner")
    await calls.run(redis_client, calls.release(SHARD, again, lane="batch"))
    await scanner.scan()
    assert await scanner.take() == []
    await redis_client.set(SHARD.job(claim.job_id), "something else")
    for _ in range(2):
        await scanner.scan(15.1)
        assert await scanner.take() == []


async def test_no_more_is_taken_at_once_than_one_reply_should_hold(
    client: AsyncClient, redis_client: Redis, scanner: Scanner
) -> None:
    await delivered(client, redis_client, "gone", 70)
    await scanner.scan()
    scanner.now += 15.1
    assert [len(await scanner.take(100)) for _ in range(10)] == [*[8] * 8, 6, 0]


@BOTH
async def test_an_owner_gets_time_to_renew_after_refused_writes(
    client: AsyncClient, redis_client: Redis, scanner: Scanner
) -> None:
    """As while a Cluster's slot moves: what is pending can be read, and no lease renewed."""
    job_ids = await delivered(client, redis_client, "alive", 3)
    await scanner.scan()
    scanner.now += 15.1
    await redis_client.config_set("min-replicas-to-write", 1)
    refused = await scanner.take(2)
    await redis_client.config_set("min-replicas-to-write", 0)
    assert refused == []
    assert await scanner.take() == []
    await scanner.scan()
    scanner.now += 15.1
    assert await scanner.take() == job_ids


@BOTH
async def test_a_damaged_job_keeps_nobody_from_the_others(
    client: AsyncClient, redis_client: Redis, scanner: Scanner
) -> None:
    job_ids = await delivered(client, redis_client, "gone", 3)
    await redis_client.set(SHARD.job(job_ids[0]), "something else")
    await scanner.scan()
    scanner.now += 15.1
    assert [job_id for _ in range(3) for job_id in await scanner.take(1)] == job_ids[1:]
