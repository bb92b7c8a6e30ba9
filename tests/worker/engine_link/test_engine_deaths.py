"""The engine dies, cannot be loaded, or is killed by a poisonous job: what the jobs and the operator see of
it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.counting_worker import assert_nothing_left, counted, streamed_text, until
from support.workers.work import SHARD, Work, answer, outcome, read_to, record_of, rest_of

from millstream import AsyncClient, JobFailed, State
from millstream_worker.service.service import CannotServe


async def test_a_prediction_outlives_the_engine_and_usage_counts_it(client: AsyncClient, work: Work) -> None:
    """Each engine computes three steps, and dies, maybe before its last step is sent."""
    async with work(dies=3, step_s=0.05, engine_restarts=9) as worker:
        asked = {"type": "content", "content": f"{counted(8, 4)} w0 {counted(13, 9)}"}
        result = await outcome(client, "w7", 6, prediction=asked)
        assert worker.metric("engine_restarts_total") >= 1
    assert result.text == counted(8, 6)
    assert 0 < result.usage.accepted_draft_tokens <= result.usage.draft_tokens


@BOTH
async def test_only_the_job_that_kills_engines_is_a_dead_letter(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """Its stream equals its result, although nothing is in the log before the end."""
    async with work(poison=666, step_s=0.002, engine_restarts=9, log_flush_s=600.0) as worker:
        mates = [await client.submit(f"w{i}", max_tokens=60) for i in range(5)]
        poison = await client.submit("w640", max_tokens=60)
        with pytest.raises(JobFailed, match="died 4 times computing this job, 2 times alone") as failed:
            await client.wait(poison.id, timeout_s=60)
        for i, job in enumerate(mates):
            assert (await client.wait(job.id, timeout_s=60)).text == counted(i + 1, 60)
        assert worker.metric("jobs_dead_lettered_total") == 1
        assert worker.metric("engine_restarts_total") == 4
        told = await streamed_text(client, poison.id)
    assert failed.value.reason == "engine_died"
    assert failed.value.result.text == told
    assert counted(641, 25).startswith(told)  # the last steps may have died with their engine, untold
    [(_, letter)] = await redis_client.xrange(SHARD.dead)
    assert letter[b"id"].decode() == poison.id
    await assert_nothing_left(redis_client)


@pytest.mark.slow
async def test_no_job_is_charged_for_a_death_between_two_steps(
    client: AsyncClient, work: Work, tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    for number in range(5):
        (late / str(number)).touch()
    async with work(late=late, step_s=0.002, engine_restarts=9) as worker:
        # alone, and would be a dead letter by the fourth
        assert await answer(client, "w10", 20) == counted(11, 20)
        assert worker.metric("engine_restarts_total") == 5


async def test_an_engine_that_never_works_ends_the_worker_and_no_job(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    job = await client.submit("w665", max_tokens=3)
    with pytest.raises(CannotServe, match="died 3 times in a row"):
        async with asyncio.timeout(60):
            await work.service(dies=0, engine_restarts=2).run()
    record = await record_of(redis_client, job.id)
    assert (record.state, record.died, record.died_alone) == (State.QUEUED, 0, 0)
    async with work():  # a worker that works
        assert (await client.wait(job.id, timeout_s=30)).text == "w666 w667 w668"


@pytest.mark.slow
async def test_a_fresh_worker_tells_poison_from_a_broken_engine(client: AsyncClient, work: Work) -> None:
    """Each engine proves that it works before a suspect has its turn."""
    async with work(poison=666, engine_restarts=2) as worker:
        with pytest.raises(JobFailed, match="2 times alone with it, the last time by signal 9"):
            await outcome(client, "w665", 3)
        assert await answer(client, "w1", 3) == counted(2, 3)
        assert worker.metric("engine_restarts_total") == 5


@pytest.mark.slow
async def test_one_death_alone_is_no_verdict(client: AsyncClient, redis_client: Redis, work: Work) -> None:
    """A suspect that happens to be alone when the machine kills its engine has another chance."""
    places = (2, 4, 6)
    work.hold(*places)
    async with work(max_died=2) as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        text = ""
        for place in places:
            text += await read_to(events, counted(2, place).removeprefix(text))
            work.kill_engine()
            work.go(place)
        assert text + await rest_of(events) == counted(2, 9) == (await client.wait(job.id)).text
        record = await record_of(redis_client, job.id)
        assert (record.attempt, record.died, record.died_alone) == (1, 3, 1)
        assert worker.metric("jobs_dead_lettered_total") == 0


async def test_streams_outlive_engines_that_die_while_loading(
    client: AsyncClient, redis_client: Redis, work: Work, tmp_path: Path
) -> None:
    """Jobs are charged only for engines that had them: those that die in loading had none, however many."""
    stillborn = tmp_path / "stillborn"
    stillborn.mkdir()
    work.hold(3)
    async with work(stillborn=stillborn, engine_restarts=9) as worker:
        jobs = [await client.submit(f"w{10 * i}", max_tokens=9, stream=i % 2 == 0) for i in range(4)]
        events = client.stream(jobs[0].id)
        text = await read_to(events, counted(1, 3))
        for number in range(3):
            (stillborn / str(number)).touch()
        work.kill_engine()
        work.go(3)
        assert text + await rest_of(events) == counted(1, 9)
        for i, job in enumerate(jobs):
            result = await client.wait(job.id, timeout_s=30)
            assert result.text == counted(10 * i + 1, 9)
            assert (result.attempts, result.usage.output_tokens) == (1, 9)
        assert worker.metric("engine_restarts_total") == 4
        assert (
            worker.metric("request_queue_time_seconds_count", lane="batch") == 4
        )  # admitted twice, and each waited once
        assert worker.metric("prompt_tokens_total") == 4
    await assert_nothing_left(redis_client)


async def test_an_engine_that_falls_silent_is_replaced(client: AsyncClient, work: Work) -> None:
    work.hold(3)
    async with work(silence_timeout_s=2) as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        text = await read_to(events, counted(2, 3))
        work.kill_engine(signal.SIGSTOP)
        work.go(3)
        assert text + await rest_of(events) == counted(2, 9)
        assert worker.metric("engine_restarts_total") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"broken": "no such architecture"}, "no such architecture"),
        ({"tokenizer": "/nowhere"}, "no usable tokenizer in /nowhere"),
        ({"engine_command": "/no/such/program"}, "/no/such/program"),
        ({"engine_command": "false", "engine_restarts": 1}, "died 2 times in a row"),
    ],
)
async def test_what_cannot_serve_says_why(work: Work, options: dict[str, object], says: str) -> None:
    with structlog.testing.capture_logs() as lines, pytest.raises(CannotServe, match=says):
        async with asyncio.timeout(60):
            await work.service(**options).run()
    assert "draining" not in [line["event"] for line in lines]


async def test_no_engine_outlives_a_worker_drained_at_any_time(work: Work) -> None:
    service = work.service()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(service.run())
        await asyncio.sleep(0)
        service.drain()
    before = set(work.engines())
    async with work():
        await until(lambda: len(work.engines()) > len(before))
        [pid] = set(work.engines()) - before
        os.kill(pid, 0)
    for pid in work.engines():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
