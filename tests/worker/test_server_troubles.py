"""What the server can do to a worker in the middle of a job: lose the end of a log, run out of memory, go
away, give the job to somebody else. Readers see one text and pollers one result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError
from support.servers.servers import BOTH, Server
from support.wire.flood import submit_all
from support.workers.counting_worker import (
    Worker,
    assert_nothing_left,
    counted,
    until,
    until_read,
    until_running,
)
from support.workers.work import (
    LANE,
    SHARD,
    Work,
    answer,
    outcome,
    read_to,
    record_of,
    rest_of,
    until_refused,
)

from millstream import AsyncClient, JobFailed, Result
from millstream.wire import calls
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.messages.record import read_log
from millstream.wire.server_errors import is_damage
from millstream.wire.state.queue_info import open_queue, read_queue
from millstream_worker.jobs.job_records import MOST_REFUSALS


async def streamed(client: AsyncClient, count: int, *, max_tokens: int) -> str:
    """Submit, and wait until `count` tokens are in the log; answers the job id."""
    job = await client.submit("w1", max_tokens=max_tokens, stream=True)
    await read_to(client.stream(job.id), counted(2, count))
    return job.id


def refused_before(worker: Worker, times: int) -> None:
    """Its jobs' writes, in a row."""
    for job in worker.components.table:
        job.log.refusals = times


async def assert_whole(client: AsyncClient, job_id: str, count: int) -> Result:
    """The result and the stream from its start both have exactly these tokens."""
    result = await client.wait(job_id, timeout_s=30)
    assert result.text == await rest_of(client.stream(job_id)) == counted(2, count)
    return result


@BOTH
async def test_a_flushed_queue_keeps_its_shape(server: Server, redis_client: Redis, work: Work) -> None:
    """A client that came to a queue without metadata would create one with a single shard."""
    await open_queue(redis_client, "default", shards=3)
    async with work() as worker:
        async with AsyncClient(server.url) as client:
            await outcome(client, "w1", 2)
        await redis_client.flushall()

        await until_read(lambda: read_queue(redis_client, "default"), lambda queue: queue is not None)
        async with AsyncClient(server.url) as client:
            jobs = [await client.submit("w1", max_tokens=2) for _ in range(8)]
            for job in jobs:
                await client.wait(job.id, timeout_s=30)
            assert {job.id.partition("-")[0] for job in jobs} - {"0"}
        await redis_client.hset(QueueKeys("default").meta, "shards", 1)  # as somebody else might have
        await until(lambda: "created with shards 1, not 3" in worker.service.health.problem)


@BOTH
async def test_the_lost_end_of_a_log_is_written_again(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(2, 4, 6)
    async with work() as worker:
        job = await client.submit("w1", max_tokens=9, stream=True)
        events = client.stream(job.id)
        for text, place in ((counted(2, 2), 2), (" " + counted(4, 2), 4), (" " + counted(6, 2), 6)):
            await read_to(events, text)
            if place < 6:
                work.go(place)
        log = await read_log(redis_client, SHARD, job.id)
        assert log[-1].seq >= 3
        async with redis_client.pipeline(transaction=True) as pipeline:
            pipeline.delete(SHARD.tokens(job.id))  # what a server has after it lost the end of its file
            for entry in log:
                if entry.seq <= 1:
                    pipeline.xadd(SHARD.tokens(job.id), {"k": entry.kind, "b": entry.body}, id=entry.cursor)
            pipeline.hset(SHARD.job(job.id), "seq", 1)
            await pipeline.execute()
        work.go(6)
        await assert_whole(client, job.id, 9)
        assert worker.metric("token_log_gap_fills_total") >= 1


@pytest.mark.slow
async def test_a_server_that_is_full_of_waiting_jobs_empties_itself(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """Although nothing expires. Some of them wait in the lane, some beside it."""
    async with work():
        pass  # whoever submits first needs to know the queue's settings
    ids = await submit_all(client, [{"prompt": "w1", "max_tokens": 2}] * 150)
    assert await redis_client.zcard(SHARD.parked("batch")) > 0
    await redis_client.config_set("maxmemory", "1")
    async with work():
        results = await client.wait_many(ids, timeout_s=90)
    assert all(isinstance(result, Result) for result in results.values())
    await redis_client.config_set("maxmemory", "0")
    await assert_nothing_left(redis_client)


@BOTH
@pytest.mark.parametrize(
    ("setting", "bad", "ends"),
    [("maxmemory", "1", True), ("maxmemory", "1", False), ("min-replicas-to-write", "1", False)],
)
async def test_a_job_outlasts_a_server_that_takes_no_writes(
    client: AsyncClient, redis_client: Redis, work: Work, setting: str, bad: str, ends: bool
) -> None:
    """However often it refuses: nothing of that is the job's fault. Where memory is full, a job also ends."""
    work.hold(3, 6)
    async with work() as worker:
        job_id = await streamed(client, 3, max_tokens=9)
        refused_before(worker, MOST_REFUSALS - 1)
        await redis_client.config_set(setting, bad)
        work.go(3)
        await until_refused(worker, times=2)
        assert worker.metric("write_troubles_total") == 1
        if ends:
            work.go(6)

            await until_read(lambda: record_of(redis_client, job_id), lambda record: record.state.terminal)
        await redis_client.config_set(setting, "0")
        work.go(6)
        await assert_whole(client, job_id, 9)


@BOTH
async def test_a_job_that_somebody_else_has_taken_is_dropped(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(3)
    async with work(lease_s=600, renew_s=300) as worker:
        job_id = await streamed(client, 3, max_tokens=9)
        [row] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
        overdue = [(row.entry_id, row.owner)]
        thief = calls.reclaim(SHARD, lane="batch", owner="thief", overdue=overdue, min_idle_ms=0, died=False)
        [entry] = await calls.run(redis_client, thief)
        start = calls.start(SHARD, entry.claim("thief"), lane="batch", nonce="n")
        assert (await calls.run(redis_client, start)).attempt == 2
        work.go(3)
        await until(lambda: worker.metric("jobs_fenced_total") == 1)
        assert worker.metric("jobs_released_total") == 0
    record = await record_of(redis_client, job_id)
    assert (record.owner, record.attempt) == ("thief", 2)
    assert [entry.kind for entry in await read_log(redis_client, SHARD, job_id)][-1] == "m"


@BOTH
async def test_entries_of_a_lost_reply_are_found_again_uncharged(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    """A read whose reply never arrives leaves its entries pending with a worker that has not seen them."""
    work.hold(1)
    async with work(rows=1, lookahead=1) as worker:
        await streamed(client, 1, max_tokens=2)
        waiting = await client.submit("w1", max_tokens=2)
        await until_running(client, waiting)  # from here on the worker does not read
        job = await client.submit("w5", max_tokens=2)
        lost = await redis_client.xreadgroup(GROUP, worker.service.name, {LANE: ">"}, count=9)
        assert len(lost[0][1]) == 1
        await redis_client.client_kill_filter(_type="normal", skipme=True)
        work.go(1)
        result = await client.wait(job.id, timeout_s=30)
        assert (result.text, result.attempts) == ("w6 w7", 1)


@BOTH
async def test_a_flushed_server_is_served_again(server: Server, redis_client: Redis, work: Work) -> None:
    async with AsyncClient(server.url) as client, work():
        await outcome(client, "w1", 1)
        await redis_client.flushall()
    async with AsyncClient(server.url) as client, work() as worker:
        await outcome(client, "w1", 1)
        for lane in SHARD.lanes:
            await redis_client.xgroup_destroy(lane, GROUP)
        assert await answer(client, "w3", 2) == "w4 w5"
        assert worker.metric("requests_total", state="completed") == 2


async def test_a_server_that_is_killed_and_comes_back(
    lasting: Server, tokenizer: Path, tmp_path: Path
) -> None:
    """And all parts of a worker together say so in one line."""
    work = Work(lasting, tokenizer, tmp_path)
    work.hold(4)
    with structlog.testing.capture_logs() as lines:
        async with AsyncClient(lasting.url) as client, work():
            job_id = await streamed(client, 4, max_tokens=12)
            lasting.kill()
            await until(lambda: bool(warnings(lines)))
            work.go(4)
            lasting.start()
            result = await assert_whole(client, job_id, 12)
            assert result.attempts == 1
    assert [line["event"] for line in warnings(lines)] == ["server does not answer"]


def warnings(lines: list[Any]) -> list[Any]:
    return [line for line in lines if line["log_level"] in ("warning", "error")]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
async def test_a_job_whose_log_is_damaged_ends_with_its_text(
    client: AsyncClient, redis_client: Redis, work: Work, ends: bool
) -> None:
    work.hold(3, 6)
    async with work() as worker:
        job_id = await streamed(client, 3, max_tokens=9)
        refused_before(worker, MOST_REFUSALS - 3)
        await redis_client.set(SHARD.tokens(job_id), "somebody else's")
        work.go(3)
        if ends:
            work.go(6)
        await until(lambda: len(worker.components.table) == 0)
        record = await record_of(redis_client, job_id)
        if ends:
            assert (record.state, worker.metric("requests_total", state="completed")) == ("completed", 1)
        else:
            with pytest.raises(JobFailed, match="log_damaged") as failed:
                await client.wait(job_id, timeout_s=30)
            assert failed.value.result.text == counted(2, 6)


@pytest.mark.slow
@BOTH
async def test_a_job_that_nobody_can_write_to_is_let_go(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(3)
    with structlog.testing.capture_logs() as lines:
        async with work(lease_s=600, renew_s=300) as worker:
            job_id = await streamed(client, 3, max_tokens=9)
            refused_before(worker, MOST_REFUSALS - 3)
            await redis_client.set(SHARD.job(job_id), "somebody else's")
            work.go(3)
            await until(lambda: len(worker.components.table) == 0)
            assert await answer(client, "w1", 2) == "w2 w3"
    [line] = [line for line in lines if line["event"] == "job dropped: its keys are damaged"]
    assert (line["job_id"], line["log_level"]) == (job_id, "error")


LUA = "script: 1f, on @user_script:1."
FAILED_AT = "Error running script (call to f_1f): @user_script:5:"
DAMAGE = (
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "LOST the lane has no entry 1-1 of job 0-a",
    f"user_script:17: attempt to compare nil with number {LUA}",
    f"{FAILED_AT} user_script:5: attempt to compare nil with number",
    f"hash value is not an integer {LUA}",
)
NO_DAMAGE = (
    f"{FAILED_AT} @user_script: 5: -OOM command not allowed when used memory > 'maxmemory'.",
    f"NOREPLICAS Not enough good replicas to write. {LUA}",
    f"MISCONF Errors writing to the AOF file {LUA}",
    "MISCONF Errors writing to the AOF file: No space left on device",
    "LOADING server is loading the dataset in memory",
)


def test_only_damaged_keys_are_never_written_to_again() -> None:
    passing = [
        OutOfMemoryError(f"command not allowed when used memory > 'maxmemory'. {LUA}"),
        ReadOnlyError(f"You can't write against a read only replica. {LUA}"),
        ConnectionError("Connection lost"),
        *map(ResponseError, NO_DAMAGE),
    ]
    assert [error for error in passing if is_damage(error)] == []
    assert [error for error in map(ResponseError, DAMAGE) if not is_damage(error)] == []
