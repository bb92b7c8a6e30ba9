"""A fault of the device, or of the code on it: the next engine is a safer one, and no job is charged as long
as there is one. A job that fails an assertion on the device each time is isolated all the same."""

from __future__ import annotations

import pytest
import structlog
from redis.asyncio import Redis
from support.workers.counting_worker import counted, until
from support.workers.work import Work, answer, outcome, record_of

from millstream import AsyncClient, JobFailed

FAULT = "exit status 1: a device fault: CUDA error: an illegal memory access was encountered"
REASON = f"cuda graphs off since {FAULT}"


async def slower(client: AsyncClient, reason: str) -> bool:
    """Whether the worker's heartbeat gives this as the only reason."""
    workers = (await client.queue_info()).workers
    return workers is not None and [worker.fallbacks for worker in workers] == [reason]


async def test_a_fault_of_recorded_steps_costs_no_job_anything(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with work(graph_fault=666, step_s=0.002) as worker:
            jobs = [await client.submit(f"w{number}", max_tokens=60) for number in (1, 2, 640)]
            for job, first in zip(jobs, (2, 3, 641), strict=True):
                assert (await client.wait(job.id, timeout_s=60)).text == counted(first, 60)
                record = await record_of(redis_client, job.id)
                assert (record.died, record.attempt) == (0, 1)
            assert worker.metric("engine_restarts_total") == 1
            assert worker.metric("engine_fallbacks", reason=REASON) == 1
            await until(lambda: slower(client, REASON))
    [reason] = [line["reason"] for line in lines if line["event"] == "the next engine is a safer, slower one"]
    assert reason == REASON


async def test_a_fault_at_start_costs_what_was_being_tried(client: AsyncClient, work: Work) -> None:
    async with work(check_fault=1) as worker:
        assert await answer(client, "w1", 3) == counted(2, 3)
        assert worker.metric("engine_restarts_total") == 1
        await until(lambda: slower(client, f"attention torch since {FAULT}"))


@pytest.mark.parametrize(
    ("fault", "deaths"), [("device_assert", 4), pytest.param("device_fault", 6, marks=pytest.mark.slow)]
)
async def test_a_job_that_makes_every_engine_fault_is_a_dead_letter(
    client: AsyncClient, work: Work, fault: str, deaths: int
) -> None:
    """Two safer engines are tried at no job's expense where the device may be at fault alone."""
    async with work(step_s=0.002, engine_restarts=9, **{fault: 666}) as worker:
        mates = [await client.submit(f"w{number}", max_tokens=60) for number in range(3)]
        with pytest.raises(JobFailed, match=r"2 times alone with it, .* exit status 1: .*: CUDA error: "):
            await outcome(client, "w640", 60)
        for number, job in enumerate(mates):
            assert (await client.wait(job.id, timeout_s=60)).text == counted(number + 1, 60)
        assert worker.metric("engine_restarts_total") == deaths
        assert worker.metric("jobs_dead_lettered_total") == 1
