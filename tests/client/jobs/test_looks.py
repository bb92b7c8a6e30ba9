"""Jobs of which nothing is heard: how often workers are asked about them, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted, model_name, serving
from support.workers.hand_worker import HandWorker

from millstream import AsyncClient, EndEvent, JobFailed, NotReady, Result, State
from millstream.client.jobs import follow_stream, wait_jobs
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.lost_entry_probe import AGAIN_S, MOST, Looks
from millstream.client.session.options import ClientOptions
from millstream.client.session.session import Session
from millstream.wire.keys import QueueKeys

SHARD = QueueKeys("default").shard(0)


def test_each_job_is_looked_at_sometimes_and_few_at_once() -> None:
    looks = Looks()
    ids = [f"0-{number}" for number in range(3 * MOST)]
    first = looks.choose(ids, 0.0)
    assert len(set(first)) == MOST
    assert looks.choose(ids, AGAIN_S - 1) == []
    assert looks.choose(first[:1], AGAIN_S) == first[:1]
    assert set(looks.choose(ids, AGAIN_S)) != set(first)


async def ends(jobs: QueueJobs, how: str, job_id: str) -> str:
    """The code of the error that a reader of this kind hears of."""
    if how == "stream":
        [event] = [event async for event in follow_stream.follow(jobs, job_id, None)]
        assert isinstance(event, EndEvent)
        assert event.state is State.FAILED
        assert event.error is not None
        return event.error.code
    [(_, outcome)] = [one async for one in wait_jobs.as_completed(jobs, [job_id], 30)]
    assert isinstance(outcome, JobFailed)
    assert "under another id" in str(outcome)
    return outcome.reason


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_readers_of_a_job_with_a_destroyed_entry_see_it_end(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    session = Session(server.url, ClientOptions(), Looks(after_s=0.1))
    jobs = QueueJobs(session, "default")
    async with AsyncClient(server.url) as client:
        lost = {how: (await client.submit("w1", deadline_s=600)).id for how in ("stream", "wait")}
        await redis_client.xtrim(SHARD.lane("batch"), maxlen=0)
        async with serving(server, model_name(tokenizer)):
            async with asyncio.timeout(30):
                codes = await asyncio.gather(*(ends(jobs, how, job_id) for how, job_id in lost.items()))
            assert codes == ["entry_lost", "entry_lost"]
            good = await client.submit("w1", max_tokens=3)
            assert (await client.wait(good.id, timeout_s=30)).choices[0].text == counted(2, 3)
    await session.aclose()
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_a_wait_notices_a_missed_end_and_its_timeout(
    server: Server, client: AsyncClient, worker: HandWorker
) -> None:
    """Where messages of another job never cease."""
    busy, quiet = (await client.submit("x")).id, (await client.submit("x")).id
    await worker.take()
    job = await worker.take()
    session = Session(server.url, ClientOptions())

    worker.keys = replace(worker.keys, sharded=True)  # publishes where nobody subscribes

    async def talk() -> None:
        while not await worker.redis.publish(SHARD.events(busy), b"1-1 e completed"):
            pass
        await job.end()
        while True:
            await worker.redis.publish(SHARD.events(busy), b"1-1 e completed")

    talking = asyncio.create_task(talk())
    async with asyncio.timeout(20):
        waiting = wait_jobs.as_completed(QueueJobs(session, "default"), [busy, quiet], 1.0, (0.01, 0.01))
        ended = [(job_id, type(outcome)) async for job_id, outcome in waiting]
    assert ended == [(quiet, Result), (busy, NotReady)]
    talking.cancel()
    await session.aclose()
