"""A tenant with a long backlog, and others that come later: what a worker's process makes of it."""

from __future__ import annotations

from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.wire.desk import WINDOW, Desk
from support.wire.flood import submit_all
from support.workers.counting_worker import assert_nothing_left
from support.workers.work import SHARD, Work

from millstream import AsyncClient, JobFields, Result
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.state.lane_head import waiting_since_ms

READ, ROWS, AHEAD, SMALL = 64, 8, 16, 20


def jobs(tenant: str, count: int) -> list[JobFields]:
    return [{"prompt": "w1", "max_tokens": 4, "tenant": tenant}] * count


async def test_a_worker_that_waits_is_woken_and_one_in_burst_mode_does_not_leave_parked_jobs(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    with work.process(block_s=10):
        for count in (1, 400):  # the second time it waits in a read
            ids = await submit_all(client, jobs("", count))
            await client.wait_many(ids, timeout_s=30)
    ids = await submit_all(client, jobs("a", 300))
    assert await redis_client.zcard(SHARD.parked("batch")) == 300 - WINDOW
    await work.burst()
    assert all(isinstance(end, Result) for end in (await client.wait_many(ids, timeout_s=1)).values())
    await assert_nothing_left(redis_client)


@BOTH
async def test_the_oldest_job_is_told_by_its_own_time(redis_client: Redis) -> None:
    """A damaged one hides no other's age, or its worker would count nothing for as long as it waits."""
    desk = await Desk(redis_client).open()
    lane = desk.keys.lane(Lane.BATCH)

    async def since_ms() -> int | None:
        return await waiting_since_ms(redis_client, desk.keys, Lane.BATCH)

    assert await since_ms() is None
    await desk.fill_window()
    await desk.park()
    await redis_client.hset(desk.keys.job("0-a"), "submitted_ms", 5)
    assert await since_ms() == 5
    await desk.take(WINDOW)
    await desk.promote()  # its entry is of now
    assert await since_ms() == 5
    await desk.take()
    assert await since_ms() is None
    strange = await redis_client.xadd(lane, {"what": "is this"})
    assert await since_ms() == int(strange.partition(b"-")[0])
    await redis_client.xdel(lane, strange)
    await redis_client.set(desk.keys.job("0-damaged"), "no hash")
    entry = await redis_client.xadd(lane, {"id": "0-damaged", "v": "1", "b": b""})
    assert await since_ms() == int(entry.partition(b"-")[0])
    desk = await Desk(redis_client, QueueKeys("other").shard(0)).open()
    await desk.fill_window()
    await desk.park()
    await redis_client.hset(desk.keys.job("0-a"), "submitted_ms", 5)
    await redis_client.set(desk.keys.job("0-window-0"), "no hash")
    assert await since_ms() == 5
