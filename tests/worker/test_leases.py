"""Whatever a worker holds stays its own while it lives, and it hears of what it shall stop."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import redis.asyncio
from prometheus_client import CollectorRegistry
from support.servers.servers import Server, free_port
from support.wire.desk import Desk
from support.workers.counting_worker import model_name, serving, until, until_running
from support.workers.held_reading import HeldReading

from millstream import AsyncClient, State
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.messages.messages import Request, Timing
from millstream.wire.messages.replies import LaneEntry
from millstream_worker.engine_link import EnginePort
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.table import JobTable
from millstream_worker.leases import Control, Leases
from millstream_worker.observe.metrics import Metrics

SHARD = QueueKeys("default").shard(0)


async def test_jobs_keep_their_lease_while_others_are_tokenized(
    valkey: Server, tokenizer: Path, reading: HeldReading
) -> None:
    """They are all started at once, and prepared one after the other: that may take longer than a lease."""
    reading.look = lambda job, started: time.sleep(0.8)
    reading.go_on.set()
    model = model_name(tokenizer, context=4096)
    async with AsyncClient(valkey.url) as client:
        jobs = [await client.submit("w1 " * 2000, max_tokens=2) for _ in range(5)]  # long: in a thread
        async with serving(valkey, model) as first:
            await until_running(client, jobs[-1])
            async with serving(valkey, model) as second:
                results = [await client.wait(job.id, timeout_s=60) for job in jobs]
                taken_over = first.metric("jobs_reclaimed_total") + second.metric("jobs_reclaimed_total")
    assert taken_over == 0
    assert [result.attempts for result in results] == [1] * 5


@pytest.mark.slow
async def test_a_loop_that_tokenizes_for_long_is_not_stuck(
    valkey: Server, tokenizer: Path, reading: HeldReading
) -> None:
    """Each input takes its time, all together more than a loop may stand still."""
    reading.look = lambda job, started: time.sleep(0.8)
    reading.go_on.set()
    async with AsyncClient(valkey.url) as client:
        jobs = [await client.submit("w1 " * 2000, max_tokens=2) for _ in range(8)]
        async with serving(valkey, model_name(tokenizer, context=4096), stuck_s=2.5) as worker:
            stuck: set[str] = set()

            async def ended() -> bool:
                stuck.update(watch.name for watch in worker.service.health.watchdog.all if watch.stuck)
                return (await client.status(jobs[-1].id)).state is State.COMPLETED

            await until(ended)
    assert "read" not in stuck


async def test_a_job_whose_keys_are_damaged_costs_no_other_its_lease(valkey: Server) -> None:
    lane = SHARD.lane("batch")
    async with AsyncClient(valkey.url) as client, redis.asyncio.Redis.from_url(valkey.url) as direct:
        good, bad = await client.submit("w1"), await client.submit("w2")
        await direct.xgroup_create(lane, GROUP, id="0")
        [[_, rows]] = await direct.xreadgroup(GROUP, "worker", {lane: ">"}, count=2)
        entries = [calls.lane_entry("batch", entry_id, fields) for entry_id, fields in rows]
        table = JobTable(EngineQueue(EnginePort()))
        table.expect(SHARD, entries)
        await direct.set(SHARD.job(bad.id), "something else")
        await direct.xclaim(lane, GROUP, "worker", 0, [entries[0].entry_id], idle=60_000, justid=True)
        await Leases(Consumer(direct, "worker"), table, Metrics(CollectorRegistry()), renew_s=10).renew()
        [first, _] = await calls.scan_pending(direct, SHARD, lane="batch", start="-", count=9)
        assert entries[0].job_id == good.id
        assert first.idle_ms < 30_000


async def test_a_stale_entry_of_the_same_id_costs_a_job_nothing(redis_client: redis.asyncio.Redis) -> None:
    """An id was cancelled while it waited, forgotten, and submitted again: its first entry is still there."""
    desk = await Desk(redis_client, SHARD).open()
    await desk.submit("0-a")
    await desk.cancel("0-a")
    await desk.run(calls.forget(SHARD, job_id="0-a"))
    await desk.submit("0-a")
    stale, entry = [LaneEntry(desk.lane, await desk.deliver("w"), "0-a", 1, b"") for _ in range(2)]
    table = JobTable(EngineQueue(EnginePort()))
    table.expect(SHARD, [stale])
    started = await desk.start(entry.entry_id, "w")
    job = Job(SHARD, entry, Request(token_ids=(1,)), started.attempt, 0, Timing(submitted_ms=1))
    table.take(job)
    await Leases(Consumer(redis_client, "w"), table, Metrics(CollectorRegistry()), renew_s=10).renew()
    assert table.holds(job)


async def test_lateness_grows_while_the_server_is_away() -> None:
    registry = CollectorRegistry()
    table = JobTable(EngineQueue(EnginePort()))
    table.expect(SHARD, [LaneEntry("batch", "1-1", "0-a", 1, b"")])
    async with redis.asyncio.Redis(port=free_port()) as nobody:
        leases = Leases(Consumer(nobody, "worker"), table, Metrics(registry), renew_s=0.05)

        async def late() -> bool:
            value = registry.get_sample_value(
                "millstream_lease_renewal_lateness_seconds", {"queue": "default"}
            )
            return value is not None and value > 0.1

        async with asyncio.TaskGroup() as group:
            group.create_task(leases.run())
            await until(late)
            leases.stop()


async def test_a_stop_while_connecting_is_heard(valkey: Server) -> None:
    control = Control(
        Endpoint.of(valkey.url),
        "w",
        [SHARD],
        JobTable(EngineQueue(EnginePort())),
        lambda: None,
        lambda *look: None,
    )
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(control.run())
        await asyncio.sleep(0)
        await control.stop()
