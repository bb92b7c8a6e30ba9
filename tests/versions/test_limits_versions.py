"""Requests with limits of tokens beside workers of an older build, which leave them alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.versions.next_version import older_build
from support.workers.counting_worker import assert_nothing_left, counted, model_name, serving, until
from support.workers.work import record_of

from millstream import AsyncClient
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.versions import ADDED


@pytest.mark.slow
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_an_older_worker_leaves_bad_words_to_a_newer(
    server: Server, redis_client: redis.asyncio.Redis, tokenizer: Path, tmp_path: Path
) -> None:
    older = older_build(tmp_path / "older", ADDED["sampling.bad_words"] - 1)
    model, limited = model_name(tokenizer), SamplingParams(max_tokens=3, bad_words=("w900",))

    async def workers(count: int) -> bool:
        async with AsyncClient(server.url) as client:
            return len((await client.queue_info()).workers or ()) == count

    with older.worker(server, model, name="older"):
        await until(lambda: workers(1))
        async with serving(server, model, name="newer"):
            await until(lambda: workers(2))
            async with AsyncClient(server.url) as client:
                jobs = [await client.submit(f"w{number}", sampling=limited) for number in range(20)]
                plain = await client.submit("w5", max_tokens=3)
                for number, job in enumerate(jobs):
                    result = await client.wait(job.id, timeout_s=30)
                    record = await record_of(redis_client, job.id)
                    assert (result.text, record.version) == (counted(number + 1, 3), 5)
                    assert record.owner.startswith("newer-")
                assert (await record_of(redis_client, plain.id)).version == 1
                await client.wait(plain.id, timeout_s=30)
    await assert_nothing_left(redis_client)
