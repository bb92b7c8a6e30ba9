"""Whatever a worker holds stays its own while it lives, and it hears of what it shall stop."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.wire.desk import Desk
from support.workers.counting_worker import until, until_running
from support.workers.held_reading import HeldReading
from support.workers.jobs import IdleEngine
from support.workers.work import LANE, SHARD, Work

from millstream import AsyncClient, State
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP
from millstream.wire.messages.job_messages import Request, Timing
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import JobAttempt, JobInput, JobTimes
from millstream_worker.jobs.table import JobTable
from millstream_worker.leases.control import Control
from millstream_worker.leases.renewal import Leases
from millstream_worker.observe.metrics import Metrics


@pytest.fixture
def table() -> JobTable:
    return JobTable(EngineQueue(IdleEngine()))


def leases_of(redis: Redis, table: JobTable, registry: CollectorRegistry, **timing: Any) -> Leases:
    return Leases(Consumer(redis, "w"), table, Metrics(registry), **{"renew_s": 10} | timing)


async def test_jobs_keep_their_lease_while_others_are_tokenized(
    client: AsyncClient, work: Work, reading: HeldReading
) -> None:
    """They are all started at once, and prepared one after the other: that may take longer than a lease."""
    reading.look = lambda job, started: time.sleep(0.4)
    reading.go_on.set()
    jobs = [await client.submit("w1 " * 2000, max_tokens=2) for _ in range(5)]  # long: in a thread
    async with work(context=4096) as first:
        await until_running(client, jobs[-1])
        async with work(context=4096) as second:
            results = [await client.wait(job.id, timeout_s=60) for job in jobs]
            taken_over = first.metric("jobs_reclaimed_total") + second.metric("jobs_reclaimed_total")
    assert taken_over == 0
    assert [result.attempts for result in results] == [1] * 5


@pytest.mark.slow
async def test_a_loop_that_tokenizes_for_long_is_not_stuck(
    client: AsyncClient, work: Work, reading: HeldReading
) -> None:
    """Each input takes its time, all together more than a loop may stand still."""
    reading.look = lambda job, started: time.sleep(0.8)
    reading.go_on.set()
    jobs = [await client.submit("w1 " * 2000, max_tokens=2) for _ in range(8)]
    async with work(context=4096, stuck_s=2.5) as worker:
        stuck: set[str] = set()

        async def ended() -> bool:
            stuck.update(watch.name for watch in worker.service.health.watchdog.all if watch.stuck)
            return (await client.status(jobs[-1].id)).state is State.COMPLETED

        await until(ended)
    assert "read" not in stuck


async def test_a_job_whose_keys_are_damaged_costs_no_other_its_lease(
    client: AsyncClient, redis_client: Redis, table: JobTable
) -> None:
    good, bad = await client.submit("w1"), await client.submit("w2")
    await redis_client.xgroup_create(LANE, GROUP, id="0")
    [[_, rows]] = await redis_client.xreadgroup(GROUP, "w", {LANE: ">"}, count=2)
    entries = [calls.lane_entry("batch", entry_id, fields) for entry_id, fields in rows]
    table.expect(SHARD, entries)
    await redis_client.set(SHARD.job(bad.id), "something else")
    await redis_client.xclaim(LANE, GROUP, "w", 0, [entries[0].entry_id], idle=60_000, justid=True)
    await leases_of(redis_client, table, CollectorRegistry()).renew()
    [first, _] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    assert entries[0].job_id == good.id
    assert first.idle_ms < 30_000


@BOTH
async def test_a_stale_entry_of_the_same_id_costs_a_job_nothing(redis_client: Redis, table: JobTable) -> None:
    """An id was cancelled while it waited, forgotten, and submitted again: its first entry is still there."""
    desk = await Desk(redis_client, SHARD).open()
    await desk.submit("0-a")
    await desk.cancel("0-a")
    await desk.run(calls.forget(SHARD, job_id="0-a"))
    await desk.submit("0-a")
    stale, entry = [LaneEntry(desk.lane, await desk.deliver("w"), "0-a", 1, b"") for _ in range(2)]
    table.expect(SHARD, [stale])
    started = await desk.start(entry.entry_id, "w")
    asked, times = JobInput(Request(token_ids=(1,))), JobTimes(Timing(submitted_ms=1))
    job = Job(SHARD, entry, JobAttempt(started.attempt, 0), asked, times)
    table.take(job)
    await leases_of(redis_client, table, CollectorRegistry()).renew()
    assert table.holds(job)


@BOTH
async def test_leases_that_were_refused_are_renewed_soon(
    client: AsyncClient, redis_client: Redis, table: JobTable
) -> None:
    """Not at the next regular time, when they would be over."""
    await client.submit("w1")
    await redis_client.xgroup_create(LANE, GROUP, id="0")
    [[_, [(entry_id, fields)]]] = await redis_client.xreadgroup(GROUP, "w", {LANE: ">"}, count=1)
    table.expect(SHARD, [calls.lane_entry("batch", entry_id, fields)])
    await redis_client.xclaim(LANE, GROUP, "w", 0, [entry_id], idle=60_000, justid=True)
    await redis_client.config_set("min-replicas-to-write", 1)
    registry = CollectorRegistry()
    leases = leases_of(redis_client, table, registry, renew_s=1)
    with structlog.testing.capture_logs() as lines:
        renewing = asyncio.create_task(leases.run())
        await until(lambda: any(line.get("doing") == "renewal of leases" for line in lines))
        await redis_client.config_set("min-replicas-to-write", 0)

        async def renewed() -> bool:
            [entry] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
            return bool(entry.idle_ms < 30_000)

        await until(renewed)
    leases.stop()
    await renewing


async def test_a_stop_while_connecting_is_heard(client: AsyncClient, work: Work, table: JobTable) -> None:
    nothing: Any = lambda *look: None  # noqa: E731
    control = Control(Endpoint.of(work.server.url), "w", [SHARD], table, nothing, nothing)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(control.run())
        await asyncio.sleep(0)
        await control.stop()
