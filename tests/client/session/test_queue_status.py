"""What `queue_info` says of a queue, and that a job nobody serves is told as such."""

from __future__ import annotations

import pytest
from support.servers.servers import Server
from support.wire.desk import Desk
from support.workers.hand_worker import HandWorker, hand_worker, replace_model

from millstream import AsyncClient, Client, ClientOptions, ModelIdentity, NotReady
from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.keys import QueueKeys
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream.wire.versions import TAKEN

SHARD = QueueKeys("default").shard(0)
OPTIONS = ClientOptions(max_bytes=10**6, shards=1)


async def alive(worker: HandWorker, **figures: int | float | str) -> None:
    await worker.create_groups()
    await calls.run(worker.redis, calls.join(worker.keys, owner=worker.name))
    await calls.run(
        worker.redis,
        beat(worker.keys, Heartbeat(worker.name, model="tiny", **figures), ttl_ms=60_000),  # type: ignore[arg-type]
    )


async def test_a_queue_that_nobody_has_used(client: AsyncClient) -> None:
    status = await client.queue_info()
    assert (status.queue, status.shards, status.waiting, status.workers) == ("default", 0, 0, ())
    assert [(lane.waiting, lane.running, lane.oldest_s) for lane in status.lanes] == [(0, 0, None)] * 2
    assert status.unread == {}


async def test_a_damaged_count_is_named(client: AsyncClient, worker: HandWorker) -> None:
    await worker.redis.set(SHARD.held_bytes, "many")
    with pytest.raises(ProtocolError, match=r"\{ms:default:0\}:bytes is damaged: b'many'"):
        await client.queue_info()


async def test_the_model_that_a_queue_has_now(client: AsyncClient, server: Server) -> None:
    assert await client.queue_model() == ModelIdentity()
    for model in (ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)):
        await replace_model(server.url, model)
        assert await client.queue_model() == model
        assert (await client.queue_info()).model_digest == model.digest


async def test_what_waits_and_what_runs(client: AsyncClient, worker: HandWorker) -> None:
    await alive(worker)
    for lane in ("interactive", "interactive", "batch"):
        await client.submit("Hello", lane=lane)
    job = await worker.take()
    retried = await worker.take()
    await calls.run(worker.redis, calls.retry(SHARD, retried.claim, lane=retried.entry.lane, delay_ms=60_000))
    status = await client.queue_info()
    interactive, batch = status.lanes
    assert (interactive.lane, interactive.waiting) == ("interactive", 0)
    assert (interactive.running, interactive.oldest_s) == (1, None)
    assert (batch.waiting, batch.running, status.delayed, status.dead, status.waiting) == (1, 0, 1, 0, 2)
    assert batch.oldest_s is not None  # its worker does not say it: from the lane
    assert status.held_bytes == status.fullest_bytes
    assert 3 <= (status.held_bytes or 0) < 1000
    await job.end()
    released = await worker.take()
    await calls.run(worker.redis, calls.release(SHARD, released.claim, lane=released.entry.lane))
    batch = (await client.queue_info()).lanes[1]
    assert (batch.waiting, batch.running) == (1, 0)  # what was given back waits again


async def test_parked_jobs_wait_and_have_tenants(server: Server) -> None:
    async with AsyncClient(server.url, queue="docs") as client, hand_worker(server.url, "docs") as worker:
        desk = await Desk(worker.redis).open()
        await desk.fill_window()
        for number, tenant in enumerate(("acme", "acme", "", "b")):
            await desk.park(f"0-{number}", tenant=tenant)
        status = await client.queue_info()
    assert (status.lanes[1].waiting, status.lanes[0].waiting) == (128 + 4, 0)
    assert status.tenants == {"acme": 2, "": 1, "b": 1}


def test_workers_are_seen_by_the_synchronous_client_too(valkey: Server) -> None:
    import asyncio

    async def beating() -> None:
        async with hand_worker(valkey.url) as worker:
            await alive(
                worker,
                rows_running=3,
                max_rows=8,
                kv_used=45,
                kv_cached=20,
                kv_free=35,
                prompt_per_s=120.5,
                output_per_s=88.1,
                prefix_queried=100,
                prefix_hit=31,
                state="draining",
                oldest_batch_ms=1,
            )

    asyncio.run(beating())
    with Client(valkey.url) as client:
        status = client.queue_info()
        assert status.workers is not None
        [worker] = status.workers
        assert (worker.model, worker.rows_running, worker.max_rows, worker.draining) == ("tiny", 3, 8, True)
        assert (worker.kv_used, worker.kv_cached, worker.kv_free) == (45, 20, 35)
        assert (worker.prompt_tokens_per_s, worker.output_tokens_per_s) == (120.5, 88.1)
        assert (worker.prefix_hit_rate, worker.versions) == (0.31, (TAKEN.low, TAKEN.high))
        assert status.lanes[1].oldest_s is None  # nothing waits any more
        client.submit("Hello")
        assert client.queue_info().lanes[1].oldest_s == pytest.approx(
            client.queue_info().at_ms / 1000, abs=60
        )


async def test_a_job_that_nobody_serves_is_told_as_such(server: Server, worker: HandWorker) -> None:
    async with AsyncClient(server.url, options=OPTIONS) as client:
        job = await client.submit("Hello")
        told = "the job is queued; no worker serves the queue 'default' now"
        for _ in range(2):
            with pytest.raises(NotReady, match=told) as failed:
                await client.result(job.id)
        assert failed.value.served is False
        with pytest.raises(NotReady, match=told):
            await client.wait(job.id, timeout_s=0.01)
    await alive(worker)
    async with AsyncClient(server.url) as client:
        with pytest.raises(NotReady) as failed:
            await client.wait(job.id, timeout_s=0.01)
        assert (failed.value.served, "no worker" in str(failed.value)) == (True, False)
        await worker.take()
        with pytest.raises(NotReady, match=r"the job is running$"):
            await client.result(job.id)
