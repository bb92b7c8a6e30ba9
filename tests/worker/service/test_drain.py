"""A worker that is told to go: what it can finish it finishes, the rest others take up where it was."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.counting_worker import assert_nothing_left, counted, until, until_running
from support.workers.work import SHARD, Work, read_to, record_of, rest_of

from millstream import AsyncClient, State
from millstream.wire.state.heartbeat import read_workers
from millstream_worker.delivery.release import RetryDelay
from millstream_worker.upkeep.heartbeats import Heartbeats


async def test_running_jobs_finish_within_the_grace_period(client: AsyncClient, work: Work) -> None:
    work.hold(3)
    async with work() as worker:
        job = await client.submit("w1", max_tokens=6, stream=True)
        await anext(client.stream(job.id))
        worker.service.drain()
        late = await client.submit("w1", max_tokens=6)
        await until(lambda: worker.service.health.problem == "draining")
        work.go(3)
        await client.wait(job.id, timeout_s=30)
    result = await client.result(job.id)
    assert (result.text, result.attempts) == (counted(2, 6), 1)
    assert (await client.status(late.id)).state is State.QUEUED


async def test_the_heartbeat_ends_with_the_worker(
    work: Work, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a beat is under way just then."""
    beating = asyncio.Event()
    send = Heartbeats.send

    async def slowly(heartbeats: Heartbeats) -> None:
        beating.set()
        await asyncio.sleep(0.5)
        await send(heartbeats)

    monkeypatch.setattr(Heartbeats, "send", slowly)
    async with work(renew_s=5.0, lease_s=30.0) as worker:
        await beating.wait()
        worker.service.drain()
    assert [key async for key in redis_client.scan_iter(match="*:worker:*")] == []


@BOTH
async def test_released_jobs_are_gone_on_with_elsewhere(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(5)
    async with work(rows=1) as first:
        running = await client.submit("w1", max_tokens=12, stream=True)
        events = client.stream(running.id)
        text = await read_to(events, counted(2, 5))
        waiting = await client.submit("w50", max_tokens=4)
        await until_running(client, waiting)  # into the look-ahead
        first.service.drain()
        first.service.drain()
    assert first.metric("jobs_released_total") == 2
    assert await read_workers(redis_client, SHARD) == []
    work.go(5)
    async with work() as second:
        text += await rest_of(events)
        result = await client.wait(running.id, timeout_s=30)
        assert (await client.wait(waiting.id, timeout_s=30)).text == counted(51, 4)
        assert second.metric("jobs_reclaimed_total") == 0  # they were free to take: nobody died
    assert text == result.text == counted(2, 12)
    assert (result.attempts, result.usage.output_tokens) == (2, 12)
    assert (await record_of(redis_client, running.id)).died == 0
    await assert_nothing_left(redis_client)


def test_parked_jobs_return_later_after_each_death_with_jitter() -> None:
    delay = RetryDelay(first_s=5.0, most_s=60.0)
    for deaths, longest_ms in ((0, 5000), (1, 5000), (2, 10_000), (3, 20_000), (9, 60_000), (5000, 60_000)):
        delays = {delay.delay_ms(deaths) for _ in range(50)}
        assert len(delays) > 10
        assert longest_ms / 2 <= min(delays) <= max(delays) <= longest_ms
