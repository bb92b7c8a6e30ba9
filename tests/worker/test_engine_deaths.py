"""The engine dies, cannot be loaded, or is killed by a poisonous job: what the jobs and the operator see of
it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
import structlog
from support.servers.servers import Server
from support.workers.counting_worker import assert_nothing_left, counted, model_name, serving, settings, until

from millstream import AsyncClient, Event, JobFailed, State
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job
from millstream_worker.service.service import CannotServe, Service

SHARD = QueueKeys("default").shard(0)


async def test_a_stream_outlives_its_engine(
    server: Server, tokenizer: Path, gate: Path, tmp_path: Path, redis_client: redis.asyncio.Redis
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    (gate / "7").touch()
    model = model_name(tokenizer, gate=gate, pids=pids)
    async with AsyncClient(server.url) as client, serving(server, model) as worker:
        jobs = [await client.submit(f"w{10 * i}", max_tokens=20, stream=i % 2 == 0) for i in range(4)]
        events = client.stream(jobs[0].id)
        text = ""
        while text != counted(1, 7):
            text += (await anext(events)).text
        [pid] = [int(path.name) for path in pids.iterdir()]
        os.kill(pid, signal.SIGKILL)
        (gate / "7").unlink()
        text += "".join([event.text async for event in events])
        assert text == counted(1, 20)
        for i, job in enumerate(jobs):
            result = await client.wait(job.id, timeout_s=30)
            assert result.choices[0].text == counted(10 * i + 1, 20)
            assert (result.attempts, result.usage.output_tokens) == (1, 20)
        assert worker.metric("engine_restarts_total") == 1
    await assert_nothing_left(redis_client)


async def test_a_prediction_outlives_the_engine_and_usage_says_what_was_right(
    server: Server, tokenizer: Path
) -> None:
    """Each engine computes three steps, and dies, maybe before its last step is sent."""
    model = model_name(tokenizer, dies=3, step_s=0.05)
    async with AsyncClient(server.url) as client, serving(server, model, engine_restarts=9) as worker:
        asked = {"type": "content", "content": f"{counted(8, 4)} w0 {counted(13, 9)}"}
        job = await client.submit("w7", max_tokens=6, prediction=asked)
        result = await client.wait(job.id, timeout_s=30)
        assert worker.metric("engine_restarts_total") >= 1
    assert result.text == counted(8, 6)
    assert 0 < result.usage.accepted_draft_tokens <= result.usage.draft_tokens


async def test_only_the_job_that_kills_engines_is_a_dead_letter(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    model = model_name(tokenizer, poison=666, step_s=0.002)
    async with AsyncClient(server.url) as client, serving(server, model, engine_restarts=9) as worker:
        mates = [await client.submit(f"w{i}", max_tokens=60) for i in range(5)]
        poison = await client.submit("w640", max_tokens=60)
        with pytest.raises(JobFailed, match="died 4 times computing this job, 2 times alone") as failed:
            await client.wait(poison.id, timeout_s=60)
        for i, job in enumerate(mates):
            assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(i + 1, 60)
        assert worker.metric("jobs_dead_lettered_total") == 1
        assert worker.metric("engine_restarts_total") == 4
    assert failed.value.reason == "engine_died"
    assert failed.value.result.choices[0].text == counted(641, 25)
    [(_, letter)] = await redis_client.xrange(SHARD.dead)
    assert letter[b"id"].decode() == poison.id
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_no_job_is_charged_for_what_the_engine_does_between_two_steps(
    server: Server, tokenizer: Path, tmp_path: Path, redis_client: redis.asyncio.Redis
) -> None:
    late = tmp_path / "late"
    late.mkdir()
    for number in range(5):
        (late / str(number)).touch()
    model = model_name(tokenizer, late=late, step_s=0.002)
    async with AsyncClient(server.url) as client, serving(server, model, engine_restarts=9) as worker:
        job = await client.submit("w10", max_tokens=20)  # alone, and would be a dead letter by the fourth
        assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(11, 20)
        assert worker.metric("engine_restarts_total") == 5
    await assert_nothing_left(redis_client)


async def test_an_engine_that_never_works_ends_the_worker_and_no_job(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        job = await client.submit("w665", max_tokens=3)
        service = Service(settings(server, model_name(tokenizer, dies=0), engine_restarts=2))
        with pytest.raises(CannotServe, match="died 3 times in a row"):
            async with asyncio.timeout(60):
                await service.run()
        record = await read_job(redis_client, SHARD, job.id)
        assert record is not None
        assert (record.state, record.died, record.died_alone) == (State.QUEUED, 0, 0)
        async with serving(server, model_name(tokenizer)):  # a worker that works
            assert (await client.wait(job.id, timeout_s=30)).choices[0].text == "w666 w667 w668"


async def test_a_fresh_worker_tells_poison_from_an_engine_that_never_works(
    valkey: Server, tokenizer: Path
) -> None:
    """Each engine proves that it works before a suspect has its turn."""
    model = model_name(tokenizer, poison=666)
    async with AsyncClient(valkey.url) as client, serving(valkey, model, engine_restarts=2) as worker:
        poison = await client.submit("w665", max_tokens=3)
        with pytest.raises(JobFailed, match="2 times alone with it, the last time by signal 9"):
            await client.wait(poison.id, timeout_s=60)
        after = await client.submit("w1", max_tokens=3)
        assert (await client.wait(after.id, timeout_s=30)).choices[0].text == counted(2, 3)
        assert worker.metric("engine_restarts_total") == 5


async def test_one_death_alone_is_no_verdict(
    server: Server, tokenizer: Path, gate: Path, tmp_path: Path, redis_client: redis.asyncio.Redis
) -> None:
    """A suspect that happens to be alone when the machine kills its engine has another chance."""
    pids = tmp_path / "pids"
    pids.mkdir()
    for place in ("2", "4", "6"):
        (gate / place).touch()
    model = model_name(tokenizer, gate=gate, pids=pids)

    async def kill_at(events: AsyncIterator[Event], text: str, place: int) -> str:
        while text != counted(2, place):
            text += (await anext(events)).text
        pid = max(int(path.name) for path in pids.iterdir())
        os.kill(pid, signal.SIGKILL)
        return text

    async with AsyncClient(server.url) as client, serving(server, model, max_died=2) as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        text = ""
        for place in (2, 4, 6):
            text = await kill_at(events, text, place)
            (gate / str(place)).unlink()
            for path in pids.iterdir():
                path.unlink()
        text += "".join([event.text async for event in events])
        assert text == counted(2, 9) == (await client.wait(job.id)).choices[0].text
        record = await read_job(redis_client, SHARD, job.id)
        assert record is not None
        assert (record.attempt, record.died, record.died_alone) == (1, 3, 1)
        assert worker.metric("jobs_dead_lettered_total") == 0


async def test_jobs_are_charged_only_for_engines_that_had_them(
    valkey: Server, tokenizer: Path, gate: Path, tmp_path: Path
) -> None:
    """Engines that die in loading had none, however many there are of them."""
    pids, stillborn = tmp_path / "pids", tmp_path / "stillborn"
    pids.mkdir()
    stillborn.mkdir()
    (gate / "3").touch()
    model = model_name(tokenizer, gate=gate, pids=pids, stillborn=stillborn)
    async with AsyncClient(valkey.url) as client, serving(valkey, model, engine_restarts=9) as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        text = ""
        while text != counted(2, 3):
            text += (await anext(events)).text
        for number in range(3):
            (stillborn / str(number)).touch()
        [pid] = [int(path.name) for path in pids.iterdir()]
        os.kill(pid, signal.SIGKILL)
        (gate / "3").unlink()
        text += "".join([event.text async for event in events])
        assert text == counted(2, 9)
        assert (await client.result(job.id)).attempts == 1
        assert worker.metric("engine_restarts_total") == 4
        assert worker.metric("request_queue_time_seconds_count") == 1  # admitted twice, and it waited once
        assert worker.metric("prompt_tokens_total") == 1


async def test_an_engine_that_falls_silent_is_replaced(
    valkey: Server, tokenizer: Path, gate: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    (gate / "3").touch()
    model = model_name(tokenizer, gate=gate, pids=pids)
    async with AsyncClient(valkey.url) as client, serving(valkey, model, silence_timeout_s=2) as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        text = ""
        while text != counted(2, 3):
            text += (await anext(events)).text
        [pid] = [int(path.name) for path in pids.iterdir()]
        os.kill(pid, signal.SIGSTOP)
        (gate / "3").unlink()
        text += "".join([event.text async for event in events])
        assert text == counted(2, 9)
        assert worker.metric("engine_restarts_total") == 1


async def test_an_idle_engine_is_not_silent(valkey: Server, tokenizer: Path) -> None:
    async with AsyncClient(valkey.url) as client:
        async with serving(valkey, model_name(tokenizer), silence_timeout_s=2) as worker:
            job = await client.submit("w1", max_tokens=1)
            await client.wait(job.id, timeout_s=30)
            await asyncio.sleep(3)  # the silence of a batch that has nothing to do, with its beats
            assert worker.metric("engine_restarts_total") == 0


async def test_the_stream_of_a_dead_letter_equals_its_result(valkey: Server, tokenizer: Path) -> None:
    model = model_name(tokenizer, poison=666)
    quiet = {"engine_restarts": 9, "log_flush_s": 600.0}  # nothing is in the log before the end
    async with AsyncClient(valkey.url) as client, serving(valkey, model, **quiet):
        mate = await client.submit("w1", max_tokens=5)
        await client.wait(mate.id, timeout_s=30)
        poison = await client.submit("w640", max_tokens=60)
        with pytest.raises(JobFailed) as failed:
            await client.wait(poison.id, timeout_s=60)
        told = [event.text async for event in client.stream(poison.id)]
    text = failed.value.result.choices[0].text
    assert "".join(told) == text
    assert counted(641, 25).startswith(text)  # the last steps may have died with their engine, untold


@pytest.mark.parametrize(
    ("options", "changes", "says"),
    [
        ({"broken": "no such architecture"}, {}, "no such architecture"),
        ({"tokenizer": "/nowhere"}, {}, "no usable tokenizer in /nowhere"),
        ({}, {"engine_command": "/no/such/program"}, "/no/such/program"),
        ({}, {"engine_command": "false", "engine_restarts": 1}, "died 2 times in a row"),
    ],
)
async def test_what_cannot_serve_says_why(
    valkey: Server, tokenizer: Path, options: dict[str, str], changes: dict[str, object], says: str
) -> None:
    model = model_name(**({"tokenizer": tokenizer} | options))
    service = Service(settings(valkey, model, **changes))
    with structlog.testing.capture_logs() as lines, pytest.raises(CannotServe, match=says):
        async with asyncio.timeout(60):
            await service.run()
    assert "draining" not in [line["event"] for line in lines]


async def test_a_worker_that_is_drained_while_loading_just_ends(valkey: Server, tokenizer: Path) -> None:
    service = Service(settings(valkey, model_name(tokenizer)))
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(service.run())
        await asyncio.sleep(0)
        service.drain()


async def test_no_engine_outlives_its_worker(valkey: Server, tokenizer: Path, tmp_path: Path) -> None:
    def pids() -> list[int]:
        return [int(path.name) for path in tmp_path.iterdir()]

    async def ready() -> bool:
        return bool(pids())

    async with serving(valkey, model_name(tokenizer, pids=tmp_path)):
        await until(ready)
        [pid] = pids()
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
