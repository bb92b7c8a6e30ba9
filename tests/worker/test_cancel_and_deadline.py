"""Jobs that end before they are done: cancelled or too late, waiting or running. What there is, is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    leftovers,
    model_name,
    serving,
    streamed_text,
    until,
)
from support.workers.held_reading import HeldReading

from millstream import AsyncClient, CancelOutcome, EndEvent, JobCancelled, JobExpired, State, TokenEvent
from millstream.wire.keys import QueueKeys


async def test_a_running_job_is_cancelled_and_keeps_its_text(
    server: Server, tokenizer: Path, gate: Path, redis_client: redis.asyncio.Redis
) -> None:
    (gate / "5").touch()
    async with (
        AsyncClient(server.url) as client,
        serving(server, model_name(tokenizer, gate=gate, rows=1)) as worker,
    ):
        job = await client.submit("w1", max_tokens=100, stream=True)
        text = ""
        async for event in client.stream(job.id):
            text += event.text
            if text == counted(2, 5) and isinstance(event, TokenEvent):
                assert await client.cancel(job.id) is CancelOutcome.REQUESTED
            if isinstance(event, EndEvent):
                assert event.state is State.CANCELLED
        with pytest.raises(JobCancelled) as cancelled:
            await client.result(job.id)
        assert cancelled.value.result.choices[0].text == text == counted(2, 5)
        assert cancelled.value.result.usage.output_tokens == 5
        # Its row is free again, or this one would wait for ever.
        after = await client.submit("w30", max_tokens=3)
        assert (await client.wait(after.id, timeout_s=30)).choices[0].text == counted(31, 3)
        assert worker.metric("requests_total", state="cancelled") == 1
    await assert_nothing_left(redis_client)


async def test_a_cancellation_whose_message_was_lost_comes_with_the_lease(
    valkey: Server, tokenizer: Path, gate: Path
) -> None:
    (gate / "5").touch()
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer, gate=gate)):
        job = await client.submit("w1", max_tokens=100, stream=True)
        events = client.stream(job.id)
        await anext(events)
        async with redis.asyncio.Redis.from_url(valkey.url) as direct:
            [shard_key] = [key async for key in direct.scan_iter(match=f"*:job:{job.id}")]
            await direct.hset(shard_key, "cancel", 1)  # what cancel does, without its message
        with pytest.raises(JobCancelled):
            await client.wait(job.id, timeout_s=30)
        await events.aclose()


async def test_jobs_in_the_look_ahead_can_be_cancelled(valkey: Server, tokenizer: Path, gate: Path) -> None:
    (gate / "1").touch()
    async with AsyncClient(valkey.url) as client, serving(valkey, model_name(tokenizer, gate=gate, rows=1)):
        running = await client.submit("w1", max_tokens=3, stream=True)
        events = client.stream(running.id)
        await anext(events)
        waiting = await client.submit("w5", max_tokens=3)
        await client.cancel(waiting.id)
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(waiting.id, timeout_s=30)
        assert cancelled.value.result.usage.output_tokens == 0
        (gate / "1").unlink()
        assert (await client.wait(running.id, timeout_s=30)).choices[0].text == counted(2, 3)
        await events.aclose()


async def test_deadlines_end_running_and_waiting_jobs(
    server: Server, tokenizer: Path, gate: Path, redis_client: redis.asyncio.Redis
) -> None:
    (gate / "4").touch()
    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer, gate=gate, rows=1)):
        first = await client.submit("w1", max_tokens=1)
        await client.wait(first.id, timeout_s=30)  # from here on there is an engine
        running = await client.submit("w1", max_tokens=50, deadline_s=2.0, stream=True)
        waiting = await client.submit("w1", max_tokens=50, deadline_s=2.0)
        text = await streamed_text(client, running.id)
        with pytest.raises(JobExpired) as expired:
            await client.wait(running.id, timeout_s=30)
        assert expired.value.result.choices[0].text == text == counted(2, 4)
        with pytest.raises(JobExpired):
            await client.wait(waiting.id, timeout_s=30)

        async def given_up() -> bool:
            """The client may have ended it: its worker hears of that a moment later."""
            return not await leftovers(redis_client, QueueKeys("default").shard(0))

        await until(given_up)
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("heard", [True, False], ids=["message", "renewal"])
async def test_a_cancellation_that_comes_while_a_job_is_read_is_remembered(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis, reading: HeldReading, heard: bool
) -> None:
    """It is started, and not a job of the worker's yet. Long inputs are read in a thread."""
    lease = {"lease_s": 600.0, "renew_s": 300.0} if heard else {}
    async with (
        AsyncClient(server.url) as client,
        serving(server, model_name(tokenizer, context=4096), **lease) as worker,
    ):
        job = await client.submit("w1 " * 2000, max_tokens=2000)
        await until(lambda: reading.begun)
        if heard:
            assert await client.cancel(job.id) is CancelOutcome.REQUESTED
        else:
            [key] = [key async for key in redis_client.scan_iter(match=f"*:job:{job.id}")]
            await redis_client.hset(key, "cancel", 1)  # what cancel does, without its message
        await until(lambda: bool(worker.components.table._cancelled))
        reading.go_on.set()
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(job.id, timeout_s=30)
        assert cancelled.value.result.usage.output_tokens == 0
        assert worker.components.table._cancelled == set()
    await assert_nothing_left(redis_client)
