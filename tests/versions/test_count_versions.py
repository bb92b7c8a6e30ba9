"""Counts beside workers and clients of an older build, which leave them alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.versions.next_version import older_build
from support.workers.counting_worker import assert_nothing_left, model_name, serving, until
from support.workers.work import record_of

from millstream import AsyncClient, JobFields, PromptTokens
from millstream.wire.messages.job_messages import Request, RequestKind
from millstream.wire.versions import ADDED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_an_older_worker_leaves_counts_to_a_newer_one(
    server: Server, redis_client: redis.asyncio.Redis, tokenizer: Path, tmp_path: Path
) -> None:
    older, model = older_build(tmp_path / "older", ADDED["kind"] - 1), model_name(tokenizer)
    asked = Request(prompt="w1 w2", stream=True).model_copy(update={"kind": RequestKind.COUNT})
    with older.worker(server, model, name="older"):

        async def alive(count: int) -> None:
            async with AsyncClient(server.url) as client:
                await until(lambda: _workers(client, count))

        await alive(1)
        async with AsyncClient(server.url) as client:
            assert (await client.count("w1 w2")).estimated
        async with serving(server, model, name="newer"):
            await alive(2)
            async with AsyncClient(server.url) as client, older.client(server) as foreign:
                many: list[JobFields] = [{"prompt": "w1 " * number} for number in range(1, 101)]
                assert await client.count_many(many) == [PromptTokens(n) for n in range(1, 101)]
                jobs = await client.submit_many([{"request": asked}] * 20)
                for job in jobs:
                    assert not isinstance(job, Exception)
                    result = await client.wait(job.id, timeout_s=30)
                    record = await record_of(redis_client, job.id)
                    assert (result.usage.prompt_tokens, result.attempts, record.died) == (2, 1, 0)
                    assert record.owner.startswith("newer-")
                    assert await foreign.stream(job.id) == ""
                    await asyncio.sleep(0)
    await assert_nothing_left(redis_client)


async def _workers(client: AsyncClient, count: int) -> bool:
    return len((await client.queue_info()).workers or ()) == count
