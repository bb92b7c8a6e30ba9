"""Jobs that were there when engines or workers died: each runs alone, is read alone, and only what kills
alone is a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError
from support.servers.servers import Server
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    streamed_text,
    until,
    until_running,
    worker_process,
)
from support.workers.held_reading import HeldReading

from millstream import AsyncClient, JobCancelled, JobFailed, State
from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.messages import Request, SamplingParams
from millstream.wire.messages.record import read_job
from millstream.wire.messages.replies import StartReply
from millstream_worker.intake import admission
from millstream_worker.intake.outline import outline
from millstream_worker.jobs.job import Job

SHARD = QueueKeys("default").shard(0)
LANE = SHARD.lane("batch")


async def suspect(
    direct: redis.asyncio.Redis, own_id: str, prompt: str, max_tokens: int, *, reader: str = "", **deaths: int
) -> tuple[str, list[Any]]:
    """Submit a job with which engines and workers have died elsewhere, before any worker sees it; `reader`
    has it delivered first. Answers its id, and what the reader got."""
    request = Request(prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens), stream=True)
    call = calls.submit(
        SHARD, job_id=f"0-{own_id}", lane="batch", payload=codec.encode(request), digest="d", version=1,
        deadline_ms=None, stream=True, max_entries=100, max_bytes=10**6,
    )  # fmt: skip
    async with direct.pipeline(transaction=True) as together:
        together.execute_command(*call.by_source)
        together.hset(SHARD.job(f"0-{own_id}"), mapping=deaths)
        if reader:
            together.xreadgroup(GROUP, reader, {LANE: ">"}, count=1)
        _, _, *delivered = await together.execute()
    return f"0-{own_id}", delivered


async def half_done(direct: redis.asyncio.Redis, prompt: str = "w1", **deaths: int) -> str:
    """A suspect that an earlier attempt has begun to answer, "w2 w3", and has given back."""
    for lane in SHARD.lanes:
        with contextlib.suppress(ResponseError):  # a worker was faster
            await direct.xgroup_create(lane, GROUP, id="0", mkstream=True)
    job_id, [[[_, [(entry_id, _)]]]] = await suspect(direct, "half", prompt, 6, reader="earlier", **deaths)
    claim = Claim(job_id, entry_id.decode(), "earlier", 1)
    await calls.run(direct, calls.start(SHARD, claim, lane="batch", nonce="n"))
    part = ChoiceDelta(text="w2 w3", token_ids=(2, 3))
    body = codec.encode(Delta(choices=(part,)))
    await calls.run(direct, calls.append(SHARD, claim, seq=1, body=body, publish=True))
    await calls.run(direct, calls.release(SHARD, claim, lane="batch"))
    return job_id


@pytest.mark.slow
async def test_only_the_job_that_kills_workers_is_a_dead_letter(valkey: Server, tokenizer: Path) -> None:
    """Nobody is left to tell what ran: that this job was alone stands in the record."""
    model = model_name(tokenizer, lethal=666, step_s=0.01)
    async with AsyncClient(valkey.url) as client:
        mates = [await client.submit(f"w{i}", max_tokens=60) for i in range(4)]
        poison = await client.submit("w640", max_tokens=60, stream=True)
        with ExitStack() as crew:
            workers = [crew.enter_context(worker_process(valkey, model))]

            async def ended() -> bool:
                if workers[-1].poll() is not None:
                    assert workers[-1].returncode == -signal.SIGKILL
                    workers.append(crew.enter_context(worker_process(valkey, model)))
                return (await client.status(poison.id)).state is State.FAILED

            await until(ended, wait_s=90)
            for i, job in enumerate(mates):
                assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(i + 1, 60)
        with pytest.raises(JobFailed, match="2 times alone with it") as failed:
            await client.result(poison.id)
        told = await streamed_text(client, poison.id)
        assert told == failed.value.result.choices[0].text
        assert counted(641, 25).startswith(told)
    async with redis.asyncio.Redis.from_url(valkey.url) as direct:
        record = await read_job(direct, SHARD, poison.id)
        assert record is not None
        assert (record.died, record.died_alone, len(workers)) == (4, 2, 5)
        assert await direct.xlen(SHARD.dead) == 1
        await assert_nothing_left(direct)


async def test_a_suspect_is_recorded_as_alone_before_it_is_read(
    valkey: Server, tokenizer: Path, gate: Path, reading: HeldReading
) -> None:
    """Reading its payload may be what kills; and while others are there, neither happens."""
    (gate / "3").touch()
    seen: list[Any] = []

    def look(job: Job, started: StartReply) -> None:
        if job.died:
            with redis.Redis(port=valkey.port) as direct:
                seen.append(direct.hmget(SHARD.job(job.id), "alone", "attempt"))

    reading.look = look
    reading.go_on.set()
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        serving(valkey, model_name(tokenizer, gate=gate)),
    ):
        other = await client.submit("w1", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(direct, "b", "w100", 2, died=2)
        await until_running(client, job_id)
        assert seen == []
        (gate / "3").unlink()
        assert (await client.wait(job_id, timeout_s=30)).choices[0].text == counted(101, 2)
        assert (await client.wait(other.id)).choices[0].text == counted(2, 6)
        assert seen == [[b"1", b"1"]]


async def test_what_was_told_before_stays_where_a_suspect_is_given_up_unread(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        job_id = await half_done(redis_client, died=3, died_alone=2)
        async with serving(server, model_name(tokenizer)):
            with pytest.raises(JobFailed, match="died 3 times computing this job, 2 times alone") as failed:
                await client.wait(job_id, timeout_s=30)
        told = await streamed_text(client, job_id)
    assert failed.value.result.choices[0].text == told == "w2 w3"
    assert failed.value.result.usage.output_tokens == 2
    await assert_nothing_left(redis_client)


async def test_a_suspect_that_waits_for_its_turn_can_be_cancelled(
    server: Server, tokenizer: Path, gate: Path, redis_client: redis.asyncio.Redis
) -> None:
    (gate / "3").touch()
    async with AsyncClient(server.url) as client, serving(server, model_name(tokenizer, gate=gate)):
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        waiting = await half_done(redis_client, died=2)

        async def taken() -> bool:
            return (await client.status(waiting)).attempt == 2

        await until(taken)
        await client.cancel(waiting)
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(waiting, timeout_s=30)
        assert cancelled.value.result.choices[0].text == "w2 w3"
        (gate / "3").unlink()
        await client.wait(other.id, timeout_s=30)
    await assert_nothing_left(redis_client)


async def test_a_job_whose_engine_died_is_given_back_with_its_charge(
    valkey: Server, tokenizer: Path, gate: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    for place in ("2", "4"):
        (gate / place).touch()
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        async with serving(valkey, model_name(tokenizer, gate=gate, pids=pids)) as worker:
            job = await client.submit("w1", max_tokens=9, stream=True)
            events = client.stream(job.id)
            text = ""
            while text != counted(2, 2):
                text += (await anext(events)).text
            [pid] = [int(path.name) for path in pids.iterdir()]
            os.kill(pid, signal.SIGKILL)
            (gate / "2").unlink()
            while text != counted(2, 4):
                text += (await anext(events)).text
            worker.service.drain()
            worker.service.drain()
        record = await read_job(direct, SHARD, job.id)
        assert record is not None
        assert (record.state, record.attempt, record.died, record.died_alone) == (State.QUEUED, 1, 1, 0)
        (gate / "4").unlink()
        async with serving(valkey, model_name(tokenizer)):
            text += "".join([event.text async for event in events])
        assert text == counted(2, 9)


async def test_many_suspects_have_their_turns_and_keep_nobody_out(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    async with AsyncClient(server.url) as client:
        jobs = [(await suspect(redis_client, str(i), f"w{100 * i}", 3, died=2 + 3 * i))[0] for i in range(5)]
        async with serving(server, model_name(tokenizer)) as worker, asyncio.timeout(60):
            late = await client.submit("w900", max_tokens=3)
            for i, job in enumerate(jobs):
                result = await client.wait(job)
                assert (result.choices[0].text, result.attempts) == (counted(100 * i + 1, 3), 1)
            assert (await client.wait(late.id)).choices[0].text == counted(901, 3)
            assert worker.metric("engine_restarts_total") == 0
    await assert_nothing_left(redis_client)


async def test_a_suspect_that_belongs_to_another_by_now_is_left_alone(
    valkey: Server, tokenizer: Path, gate: Path
) -> None:
    """While it waited for its turn the lease was lost, and nobody has noticed."""
    (gate / "3").touch()
    long = {"lease_s": 600.0, "renew_s": 300.0}
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        serving(valkey, model_name(tokenizer, gate=gate), **long) as worker,
    ):
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(direct, "b", "w1", 3, died=2)
        await until_running(client, job_id)
        await direct.hset(SHARD.job(job_id), mapping={"owner": "another", "attempt": 2})
        (gate / "3").unlink()
        await client.wait(other.id, timeout_s=30)
        await until(lambda: worker.metric("jobs_fenced_total") == 1)
        after = await client.submit("w100", max_tokens=2)
        assert (await client.wait(after.id, timeout_s=30)).choices[0].text == counted(101, 2)
        assert await direct.hget(SHARD.job(job_id), "alone") is None


async def test_a_suspect_waits_for_long_jobs_that_are_read_or_to_be_read(
    valkey: Server, tokenizer: Path, reading: HeldReading
) -> None:
    model = model_name(tokenizer, context=40_000, blocks=10_000)
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        serving(valkey, model) as worker,
    ):
        long = [(await client.submit("w1 " * 30_000, max_tokens=2)).id for _ in range(2)]
        job_id, _ = await suspect(direct, "b", "w100", 2, died=2)
        await until(lambda: reading.begun)
        await until_running(client, job_id)
        assert worker.components.queue.try_isolate() is None
        reading.go_on.set()
        await client.wait_many([*long, job_id], timeout_s=30)
        assert (await client.result(job_id)).choices[0].text == counted(101, 2)
    assert [job.id for job in reading.jobs] == [*long, job_id]


async def test_a_suspect_waits_while_a_long_job_is_looked_at(
    valkey: Server, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came in the same read; its tenant is looked for in its bytes, which others have written."""
    isolated: list[Any] = []
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
    ):
        job_id, _ = await suspect(direct, "b", "w100", 2, died=2)
        long_id, _ = await suspect(direct, "long", "w1 " * 30_000, 2, died=0)
        async with serving(valkey, model_name(tokenizer, context=40_000, blocks=10_000)) as worker:

            def looking(payload: bytes) -> Any:
                queue = worker.components.queue
                isolated.append(queue.try_isolate() or queue.isolated)
                return outline(payload)

            monkeypatch.setattr(admission, "outline", looking)
            await client.wait_many([job_id, long_id], timeout_s=30)
    assert isolated == [None]


async def test_the_log_of_a_job_that_is_put_off_counts_as_its_message_does(
    valkey: Server, tokenizer: Path, reading: HeldReading
) -> None:
    counts: list[bool] = []

    def look(job: Job, started: StartReply) -> None:
        logged = sum(len(entry.body) for entry in started.log)
        counts.append(0 < logged == job.unread_bytes - len(job.entry.payload))

    reading.look = look
    reading.go_on.set()
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        job_id = await half_done(direct, "w1 " * 30_000, died=0)
        async with serving(valkey, model_name(tokenizer, context=40_000, blocks=10_000)):
            assert (await client.wait(job_id, timeout_s=30)).choices[0].text == counted(2, 6)
    assert counts == [True]


async def test_a_suspect_cancelled_while_it_is_read_keeps_its_text(
    valkey: Server, tokenizer: Path, reading: HeldReading
) -> None:
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        job_id = await half_done(direct, "w1 " * 2000, died=2)  # long: in a thread
        async with serving(valkey, model_name(tokenizer, context=4096)):
            await until(lambda: reading.begun)
            await client.cancel(job_id)
            events = client.stream(job_id)
            reading.go_on.set()
            told = "".join([event.text async for event in events])
            with pytest.raises(JobCancelled) as cancelled:
                await client.wait(job_id, timeout_s=30)
    assert cancelled.value.result.choices[0].text == told == "w2 w3"
