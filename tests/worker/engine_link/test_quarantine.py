"""Jobs that were there when engines or workers died: each runs alone, is read alone, and only what kills
alone is a dead letter."""

from __future__ import annotations

import contextlib
import signal
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from support.servers.servers import BOTH
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    streamed_text,
    until,
    until_read,
    until_running,
)
from support.workers.held_reading import HeldReading
from support.workers.work import (
    LANE,
    SHARD,
    Work,
    answer,
    raw_submission,
    read_to,
    record_of,
    rest_of,
    until_refused,
)

from millstream import AsyncClient, JobCancelled, JobFailed, State
from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import GROUP
from millstream.wire.messages import codec
from millstream.wire.messages.choices import ChoiceDelta, Delta
from millstream.wire.messages.job_messages import Request, SamplingParams
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.intake import admission
from millstream_worker.intake.preparation.outline import outline
from millstream_worker.jobs.job import Job


async def suspect(
    direct: Redis, own_id: str, prompt: str, max_tokens: int, *, reader: str = "", **deaths: int
) -> tuple[str, list[Any]]:
    """Submit a job with which engines and workers have died elsewhere, before any worker sees it; `reader`
    has it delivered first. Answers its id, and what the reader got."""
    request = Request(prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens), stream=True)
    call = raw_submission(f"0-{own_id}", codec.encode(request))
    async with direct.pipeline(transaction=True) as together:
        together.execute_command(*call.by_source)
        together.hset(SHARD.job(f"0-{own_id}"), mapping=deaths)
        if reader:
            together.xreadgroup(GROUP, reader, {LANE: ">"}, count=1)
        _, _, *delivered = await together.execute()
    return f"0-{own_id}", delivered


async def half_done(direct: Redis, prompt: str = "w1", **deaths: int) -> str:
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
async def test_only_the_job_that_kills_workers_is_a_dead_letter(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """Nobody is left to tell what ran: that this job was alone stands in the record."""
    lethal = {"lethal": 666, "step_s": 0.01}
    mates = [await client.submit(f"w{i}", max_tokens=60) for i in range(4)]
    poison = await client.submit("w640", max_tokens=60, stream=True)
    with ExitStack() as crew:
        workers = [crew.enter_context(work.process(**lethal))]

        async def ended() -> bool:
            if workers[-1].poll() is not None:
                assert workers[-1].returncode == -signal.SIGKILL
                workers.append(crew.enter_context(work.process(**lethal)))
            return (await client.status(poison.id)).state is State.FAILED

        await until(ended, wait_s=90)
        for i, job in enumerate(mates):
            assert (await client.wait(job.id, timeout_s=60)).text == counted(i + 1, 60)
    with pytest.raises(JobFailed, match="2 times alone with it") as failed:
        await client.result(poison.id)
    told = await streamed_text(client, poison.id)
    assert told == failed.value.result.text
    assert counted(641, 25).startswith(told)
    record = await record_of(redis_client, poison.id)
    assert (record.died, record.died_alone, len(workers)) == (4, 2, 5)
    assert await redis_client.xlen(SHARD.dead) == 1
    await assert_nothing_left(redis_client)


async def test_a_suspect_is_recorded_as_alone_before_it_is_read(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading
) -> None:
    """Reading its payload may be what kills; and while others are there, neither happens."""
    work.hold(3)
    seen: list[Any] = []

    def look(job: Job, started: StartReply) -> None:
        if job.attempt.died:
            with redis.Redis(port=work.server.port) as direct:
                seen.append(direct.hmget(SHARD.job(job.id), "alone", "attempt"))

    reading.look = look
    reading.go_on.set()
    async with work():
        other = await client.submit("w1", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(redis_client, "b", "w100", 2, died=2)
        await until_running(client, job_id)
        assert seen == []
        work.go(3)
        assert (await client.wait(job_id, timeout_s=30)).text == counted(101, 2)
        assert (await client.wait(other.id)).text == counted(2, 6)
        assert seen == [[b"1", b"1"]]


@BOTH
async def test_a_suspect_given_up_unread_keeps_its_earlier_output(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    job_id = await half_done(redis_client, died=3, died_alone=2)
    async with work():
        with pytest.raises(JobFailed, match="died 3 times computing this job, 2 times alone") as failed:
            await client.wait(job_id, timeout_s=30)
    assert failed.value.result.text == await streamed_text(client, job_id) == "w2 w3"
    assert failed.value.result.usage.output_tokens == 2
    await assert_nothing_left(redis_client)


async def test_a_suspect_that_waits_for_its_turn_can_be_cancelled(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(3)
    async with work():
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        waiting = await half_done(redis_client, died=2)

        await until_read(lambda: client.status(waiting), lambda job: job.attempt == 2)
        await client.cancel(waiting)
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(waiting, timeout_s=30)
        assert cancelled.value.result.text == "w2 w3"
        work.go(3)
        await client.wait(other.id, timeout_s=30)
    await assert_nothing_left(redis_client)


async def test_a_job_whose_engine_died_is_given_back_with_its_charge(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(2, 4)
    async with work() as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        await read_to(events, counted(2, 2))
        work.kill_engine()
        work.go(2)
        await read_to(events, " " + counted(4, 2))
        worker.service.drain()
        worker.service.drain()
    record = await record_of(redis_client, job.id)
    assert (record.state, record.attempt, record.died, record.died_alone) == (State.QUEUED, 1, 1, 0)
    work.go(4)
    async with work():
        assert await rest_of(events) == " " + counted(6, 5)


async def test_many_suspects_have_their_turns_and_keep_nobody_out(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    jobs = [(await suspect(redis_client, str(i), f"w{100 * i}", 3, died=2 + 3 * i))[0] for i in range(5)]
    async with work() as worker:
        assert await answer(client, "w900", 3) == counted(901, 3)
        for i, job in enumerate(jobs):
            result = await client.wait(job, timeout_s=60)
            assert (result.text, result.attempts) == (counted(100 * i + 1, 3), 1)
        assert worker.metric("engine_restarts_total") == 0
    await assert_nothing_left(redis_client)


async def test_a_suspect_that_belongs_to_another_by_now_is_left_alone(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """While it waited for its turn the lease was lost, and nobody has noticed."""
    work.hold(3)
    async with work(lease_s=600.0, renew_s=300.0) as worker:
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(redis_client, "b", "w1", 3, died=2)
        await until_running(client, job_id)
        await redis_client.hset(SHARD.job(job_id), mapping={"owner": "another", "attempt": 2})
        work.go(3)
        await client.wait(other.id, timeout_s=30)
        await until(lambda: worker.metric("jobs_fenced_total") == 1)
        assert await answer(client, "w100", 2) == counted(101, 2)
        assert await redis_client.hget(SHARD.job(job_id), "alone") is None


@pytest.mark.slow
@BOTH
async def test_a_suspect_that_nobody_can_write_to_is_let_go(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """Recording that it runs isolated is refused, as its end would be."""
    work.hold(3)
    async with work(lease_s=600.0, renew_s=300.0) as worker:
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(redis_client, "b", "w1", 3, died=2)
        await until_running(client, job_id)
        await redis_client.set(SHARD.job(job_id), "somebody else's")
        work.go(3)
        await until(lambda: len(worker.components.table) == 0)
        assert await answer(client, "w100", 2) == counted(101, 2)


@BOTH
async def test_a_suspect_outlasts_a_server_that_takes_no_writes(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """However often it refuses: a refusal of this kind is not counted as damage."""
    work.hold(3)
    async with work(lease_s=600.0, renew_s=300.0) as worker:
        other = await client.submit("w50", max_tokens=6, stream=True)
        await anext(client.stream(other.id))
        job_id, _ = await suspect(redis_client, "b", "w1", 3, died=2)
        await until_running(client, job_id)
        await redis_client.config_set("min-replicas-to-write", 1)
        work.go(3)
        await until_refused(worker, times=2)  # the end of the other waits, too
        await redis_client.config_set("min-replicas-to-write", 0)
        result = await client.wait(job_id, timeout_s=30)
        assert (result.text, result.attempts) == (counted(2, 3), 1)
    await assert_nothing_left(redis_client)


LONG = {"context": 40_000, "blocks": 10_000}


async def test_a_suspect_waits_for_long_jobs_to_be_read(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading
) -> None:
    async with work(**LONG) as worker:
        long = [(await client.submit("w1 " * 30_000, max_tokens=2)).id for _ in range(2)]
        job_id, _ = await suspect(redis_client, "b", "w100", 2, died=2)
        await until(lambda: reading.begun)
        await until_running(client, job_id)
        assert worker.components.queue.try_isolate() is None
        reading.go_on.set()
        await client.wait_many([*long, job_id], timeout_s=30)
        assert (await client.result(job_id)).text == counted(101, 2)
    assert [job.id for job in reading.jobs] == [*long, job_id]


async def test_a_suspect_waits_while_a_long_job_is_looked_at(
    client: AsyncClient, redis_client: Redis, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came in the same read; its tenant is looked for in its bytes, which others have written."""
    isolated: list[Any] = []
    job_id, _ = await suspect(redis_client, "b", "w100", 2, died=2)
    long_id, _ = await suspect(redis_client, "long", "w1 " * 30_000, 2, died=0)
    async with work(**LONG) as worker:

        def looking(payload: bytes) -> Any:
            queue = worker.components.queue
            isolated.append(queue.try_isolate() or queue.isolated)
            return outline(payload)

        monkeypatch.setattr(admission, "outline", looking)
        await client.wait_many([job_id, long_id], timeout_s=30)
    assert isolated == [None]


async def test_the_log_of_a_deferred_job_counts_as_its_message_does(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading
) -> None:
    counts: list[bool] = []

    def look(job: Job, started: StartReply) -> None:
        logged = sum(len(entry.body) for entry in started.log)
        counts.append(0 < logged == job.input.unread_bytes - len(job.entry.payload))

    reading.look = look
    reading.go_on.set()
    job_id = await half_done(redis_client, "w1 " * 30_000, died=0)
    async with work(**LONG):
        assert (await client.wait(job_id, timeout_s=30)).text == counted(2, 6)
    assert counts == [True]


async def test_a_suspect_cancelled_while_it_is_read_keeps_its_text(
    client: AsyncClient, redis_client: Redis, work: Work, reading: HeldReading
) -> None:
    job_id = await half_done(redis_client, "w1 " * 2000, died=2)  # long: in a thread
    async with work(context=4096):
        await until(lambda: reading.begun)
        await client.cancel(job_id)
        events = client.stream(job_id)
        reading.go_on.set()
        told = await rest_of(events)
        with pytest.raises(JobCancelled) as cancelled:
            await client.wait(job_id, timeout_s=30)
    assert cancelled.value.result.text == told == "w2 w3"
