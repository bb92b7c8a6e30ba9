"""A fault of the device, or of the code on it: the next engine is a safer one, and no job is charged as long
as there is one. A job that fails an assertion on the device each time is isolated all the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
import structlog
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until

from millstream import AsyncClient, JobFailed
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job

FAULT = "exit status 1: a device fault: CUDA error: an illegal memory access was encountered"
REASON = f"cuda graphs off since {FAULT}"
SHARD = QueueKeys("default").shard(0)


async def slower(client: AsyncClient, reason: str) -> bool:
    """Whether the worker's heartbeat gives this as the only reason."""
    workers = (await client.queue_info()).workers
    return workers is not None and [worker.fallbacks for worker in workers] == [reason]


async def test_a_fault_of_recorded_steps_costs_no_job_anything(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    model = model_name(tokenizer, graph_fault=666, step_s=0.002)
    with structlog.testing.capture_logs() as lines:
        async with AsyncClient(server.url) as client, serving(server, model) as worker:
            jobs = [await client.submit(f"w{number}", max_tokens=60) for number in (1, 2, 640)]
            for job, first in zip(jobs, (2, 3, 641), strict=True):
                assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(first, 60)
                record = await read_job(redis_client, SHARD, job.id)
                assert record is not None
                assert (record.died, record.attempt) == (0, 1)
            assert worker.metric("engine_restarts_total") == 1
            assert worker.metric("engine_fallbacks") == 1
            await until(lambda: slower(client, REASON))
    [reason] = [line["reason"] for line in lines if line["event"] == "the next engine is a safer, slower one"]
    assert reason == REASON


async def test_what_is_found_to_be_wrong_in_service_is_told_and_kept_off(
    valkey: Server, tokenizer: Path
) -> None:
    """The engine serves on; the one after it does not begin with what was wrong."""
    model = model_name(tokenizer, graph_wrong=5, graph_fault=666, poison=20, step_s=0.002)
    reason = "cuda graphs off since a step has other logits"
    async with AsyncClient(valkey.url) as client, serving(valkey, model) as worker:
        job = await client.submit("w1", max_tokens=10)
        assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(2, 10)
        assert worker.metric("engine_restarts_total") == 0
        assert worker.metric("engine_fallbacks") == 1
        await until(lambda: slower(client, reason))
        dies, ends = [await client.submit(prompt, max_tokens=5) for prompt in ("w17", "w663")]
        with pytest.raises(JobFailed):
            await client.wait(dies.id, timeout_s=60)
        assert (await client.wait(ends.id, timeout_s=60)).choices[0].text == counted(664, 5)
        await until(lambda: slower(client, reason))


async def test_a_fault_at_start_costs_what_was_being_tried(valkey: Server, tokenizer: Path) -> None:
    model = model_name(tokenizer, check_fault=1)
    async with AsyncClient(valkey.url) as client, serving(valkey, model) as worker:
        job = await client.submit("w1", max_tokens=3)
        assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(2, 3)
        assert worker.metric("engine_restarts_total") == 1
        await until(lambda: slower(client, f"attention torch since {FAULT}"))


@pytest.mark.parametrize(("fault", "deaths"), [("device_assert", 4), ("device_fault", 6)])
async def test_a_job_that_makes_every_engine_fault_is_a_dead_letter(
    valkey: Server, tokenizer: Path, fault: str, deaths: int
) -> None:
    """Two safer engines are tried at no job's expense where the device may be at fault alone."""
    model = model_name(tokenizer, step_s=0.002, **{fault: 666})
    async with AsyncClient(valkey.url) as client, serving(valkey, model, engine_restarts=9) as worker:
        mates = [await client.submit(f"w{number}", max_tokens=60) for number in range(3)]
        poison = await client.submit("w640", max_tokens=60)
        with pytest.raises(JobFailed, match=r"2 times alone with it, .* exit status 1: .*: CUDA error: "):
            await client.wait(poison.id, timeout_s=60)
        for number, job in enumerate(mates):
            assert (await client.wait(job.id, timeout_s=60)).choices[0].text == counted(number + 1, 60)
        assert worker.metric("engine_restarts_total") == deaths
        assert worker.metric("jobs_dead_lettered_total") == 1
