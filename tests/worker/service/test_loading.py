"""A worker that loads its model is seen from its first second on, and by nobody taken for one that serves."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH
from support.workers.counting_worker import counted, until
from support.workers.work import SHARD, Work

from millstream import AsyncClient, WorkerStatus
from millstream.wire.state.heartbeat import read_workers

SOON_S = 5.0


async def loading(client: AsyncClient) -> list[WorkerStatus]:
    return list((await client.queue_info()).loading or ())


@BOTH
async def test_a_loading_worker_is_seen_and_takes_no_job(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    job = await client.submit("w1", max_tokens=3)
    async with work(load_s=2.0) as worker:
        worker_name = worker.service.name

        async def learns() -> bool:
            return [one.step for one in await loading(client)] == ["reading the weights"]

        await until(learns, SOON_S)
        [one] = await loading(client)
        assert (one.name, one.state, one.model, one.max_rows) == (worker_name, "loading", "", 0)
        assert (one.late, one.started_ms is not None) == (False, True)
        status = await client.queue_info()
        assert (status.workers, status.models, status.lanes[1].running) == ((), (), 0)
        assert await read_workers(redis_client, SHARD) == []
        result = await client.wait(job.id, timeout_s=30)
        assert result.text == counted(2, 3)

        async def serves() -> bool:
            return [one.state for one in (await client.queue_info()).workers or ()] == ["serving"]

        await until(serves, SOON_S)
        assert await loading(client) == []
        [one] = (await client.queue_info()).workers or ()
        assert (one.name, one.step) == (worker_name, "")
    assert [key async for key in redis_client.scan_iter(match="*:worker:*")] == []


@pytest.mark.slow
async def test_an_engine_that_starts_again_has_its_step(client: AsyncClient, work: Work) -> None:
    """Its worker keeps its jobs, and is found among those that serve."""
    work.hold(2)
    async with work(load_s=1.5):
        job = await client.submit("w1", max_tokens=4, stream=True)
        await anext(client.stream(job.id))
        work.kill_engine()

        async def starts() -> bool:
            found = (await client.queue_info()).workers or ()
            return [(one.state, one.step) for one in found] == [("starting", "reading the weights")]

        await until(starts, SOON_S)
        assert await loading(client) == []
        work.go(2)
        assert (await client.wait(job.id, timeout_s=30)).text == counted(2, 4)
