"""A tenant with a long backlog, and others that come later: what a worker's process makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.wire.desk import WINDOW, Desk
from support.workers.counting_worker import assert_nothing_left, model_name, settings, until, worker_process

from millstream import AsyncClient, JobFields, Result
from millstream.client.queue.options import ClientOptions
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.state.lane_head import waiting_since_ms
from millstream_worker.service.service import Service

SHARD = QueueKeys("default").shard(0)
READ, ROWS, AHEAD, SMALL = 64, 8, 16, 20


async def submitted(client: AsyncClient, tenant: str, count: int) -> list[str]:
    job: JobFields = {"prompt": "w1", "max_tokens": 4, "tenant": tenant}
    outcomes = await client.submit_many([job] * count)
    ids = [outcome.id for outcome in outcomes if not isinstance(outcome, Exception)]
    assert len(ids) == count
    return ids


@pytest.mark.slow
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_few_jobs_do_not_wait_for_thousands_of_another_tenant(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    """For what is in the lane and the worker already, and for as much as they ask for themselves."""
    async with AsyncClient(server.url) as client:
        large = await submitted(client, "large", 2000)
        small = await submitted(client, "small", SMALL)
        with worker_process(server, model_name(tokenizer), max_rows=ROWS, lookahead=AHEAD):
            ends = await client.wait_many(small, timeout_s=60)
            last_ms = max(end.timing.finished_ms or 0 for end in ends.values() if isinstance(end, Result))
            everything = await client.wait_many(large, timeout_s=90)
            await until(lambda: nothing_parked(redis_client))
    assert all(isinstance(end, Result) for end in [*ends.values(), *everything.values()])
    before = sum(
        end.timing.finished_ms < last_ms
        for end in everything.values()
        if isinstance(end, Result) and end.timing.finished_ms is not None
    )
    assert before <= WINDOW + READ + ROWS + AHEAD + SMALL
    await assert_nothing_left(redis_client)


async def nothing_parked(client: redis.asyncio.Redis) -> bool:
    return not await client.exists(*SHARD.parking)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_worker_that_waits_is_woken_and_one_in_burst_mode_does_not_leave_parked_jobs(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        with worker_process(server, model_name(tokenizer), block_s=10):
            first = await submitted(client, "", 1)
            await client.wait_many(first, timeout_s=30)
            ids = await submitted(client, "", 400)  # it waits in a read
            await client.wait_many(ids, timeout_s=30)
        ids = await submitted(client, "a", 300)
        assert await redis_client.zcard(SHARD.parked("batch")) == 300 - WINDOW
        await Service(settings(server, model_name(tokenizer), burst=True)).run()
        outcomes = await client.wait_many(ids, timeout_s=1)
        assert all(isinstance(outcome, Result) for outcome in outcomes.values())
    await assert_nothing_left(redis_client)


async def test_the_oldest_job_is_told_by_its_own_time(redis_client: redis.asyncio.Redis) -> None:
    desk = await Desk(redis_client).open()

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
    entry = await redis_client.xadd(desk.keys.lane(Lane.BATCH), {"what": "is this"})
    assert await since_ms() == int(entry.partition(b"-")[0])


async def test_a_damaged_job_that_waits_hides_no_other_one_s_age(redis_client: redis.asyncio.Redis) -> None:
    """Its worker would count nothing, and not be ready, for as long as the job waits."""
    desk = await Desk(redis_client).open()
    lane, damaged = desk.keys.lane(Lane.BATCH), desk.keys.job("0-damaged")
    await redis_client.set(damaged, "no hash")
    entry = await redis_client.xadd(lane, {"id": "0-damaged", "v": "1", "b": b""})
    assert await waiting_since_ms(redis_client, desk.keys, Lane.BATCH) == int(entry.partition(b"-")[0])
    await desk.fill_window()
    await desk.park()
    await redis_client.hset(desk.keys.job("0-a"), "submitted_ms", 5)
    assert await waiting_since_ms(redis_client, desk.keys, Lane.BATCH) == 5


async def test_bounds_count_what_is_parked(server: Server) -> None:
    options = ClientOptions(max_entries=200)
    async with AsyncClient(server.url, options=options) as client:
        outcomes = await client.submit_many([{"prompt": "w1"}] * 250)
        assert sum(isinstance(outcome, Exception) for outcome in outcomes) == 50
