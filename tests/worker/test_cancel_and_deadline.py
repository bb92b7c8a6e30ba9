"""Jobs that end before they are done: cancelled or too late, waiting or running. What there is, is kept."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.counting_worker import assert_nothing_left, counted, leftovers, streamed_text, until
from support.workers.held_reading import HeldReading
from support.workers.work import SHARD, Work, answer, read_to

from millstream import AsyncClient, CancelOutcome, EndEvent, JobCancelled, JobExpired, State


@BOTH
async def test_a_running_job_is_cancelled_and_keeps_its_text(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """One that waits in the look-ahead before it."""
    work.hold(5)
    async with work(rows=1) as worker:
        job = await client.submit("w1", max_tokens=100, stream=True)
        events = client.stream(job.id)
        text = await read_to(events, counted(2, 5))
        waiting = await client.submit("w5", max_tokens=3)
        await client.cancel(waiting.id)
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(waiting.id, timeout_s=30)
        assert cancelled.value.result.usage.output_tokens == 0
        assert await client.cancel(job.id) is CancelOutcome.REQUESTED
        *_, end = [event async for event in events]
        assert isinstance(end, EndEvent)
        assert end.state is State.CANCELLED
        with pytest.raises(JobCancelled) as cancelled:
            await client.result(job.id)
        assert cancelled.value.result.text == text
        assert cancelled.value.result.usage.output_tokens == 5
        # Its row is free again, or this one would wait for ever.
        assert await answer(client, "w30", 3) == counted(31, 3)
        assert worker.metric("requests_total", state="cancelled") == 2
    await assert_nothing_left(redis_client)


async def test_a_cancellation_without_its_message_comes_with_the_lease(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(5)
    async with work():
        job = await client.submit("w1", max_tokens=100, stream=True)
        await anext(client.stream(job.id))
        await redis_client.hset(SHARD.job(job.id), "cancel", 1)  # what cancel does, without its message
        with pytest.raises(JobCancelled):
            await client.wait(job.id, timeout_s=30)


@BOTH
async def test_deadlines_end_running_and_waiting_jobs(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(4)
    async with work(rows=1):
        await answer(client, "w1", 1)  # from here on there is an engine
        running = await client.submit("w1", max_tokens=50, deadline_s=1.0, stream=True)
        waiting = await client.submit("w1", max_tokens=50, deadline_s=1.0)
        text = await streamed_text(client, running.id)
        with pytest.raises(JobExpired) as expired:
            await client.wait(running.id, timeout_s=30)
        assert expired.value.result.text == text == counted(2, 4)
        with pytest.raises(JobExpired):
            await client.wait(waiting.id, timeout_s=30)

        async def given_up() -> bool:
            """The client may have ended it: its worker hears of that a moment later."""
            return not await leftovers(redis_client, SHARD)

        await until(given_up)
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("heard", [True, False], ids=["message", "renewal"])
async def test_a_cancellation_while_a_job_is_read_is_remembered(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading, heard: bool
) -> None:
    """It is started, and not a job of the worker's yet. Long inputs are read in a thread."""
    lease = {"lease_s": 600.0, "renew_s": 300.0} if heard else {}
    async with work(context=4096, **lease) as worker:
        job = await client.submit("w1 " * 2000, max_tokens=2000)
        await until(lambda: reading.begun)
        if heard:
            assert await client.cancel(job.id) is CancelOutcome.REQUESTED
        else:
            await redis_client.hset(SHARD.job(job.id), "cancel", 1)
        await until(lambda: bool(worker.components.table._cancelled))
        reading.go_on.set()
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(job.id, timeout_s=30)
        assert cancelled.value.result.usage.output_tokens == 0
        assert worker.components.table._cancelled == set()
    await assert_nothing_left(redis_client)
