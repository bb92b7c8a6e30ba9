"""Requests that say how their prompt is made, beside workers of an older build, which would ignore it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.versions.next_version import older_build
from support.workers.counting_worker import assert_nothing_left, model_name, serving, until, write_tokenizer
from support.workers.work import record_of

from millstream import AsyncClient
from millstream.wire.messages.job_messages import Request
from millstream.wire.versions import ADDED

TEMPLATE = "{% for m in messages %}{{ m.content }} w99 {% endfor %}"
pytestmark = pytest.mark.slow
BEGUN = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w5 w6"}]


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_an_older_worker_leaves_begun_answers_to_a_newer_one(
    server: Server, redis_client: redis.asyncio.Redis, tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path / "chat", chat=True, template=TEMPLATE)
    older, model = older_build(tmp_path / "older", ADDED["return_token_ids"] - 1), model_name(tokenizer)
    begun = Request.model_validate(
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False,
         "return_token_ids": True, "sampling": {"max_tokens": 2, "truncate_prompt_tokens": 2}}
    )  # fmt: skip
    with older.worker(server, model, name="older"):
        await until(lambda: _workers(server, 1))
        async with serving(server, model, name="newer"):
            await until(lambda: _workers(server, 2))
            async with AsyncClient(server.url) as client:
                for job in await client.submit_many([{"request": begun}] * 8):
                    assert not isinstance(job, Exception)
                    result = await client.wait(job.id, timeout_s=30)
                    assert (result.text.split(), result.usage.prompt_tokens) == (["w7", "w8"], 2)
                    assert result.prompt_token_ids == (5, 6)
                    assert (await record_of(redis_client, job.id)).owner.startswith("newer-")
    await assert_nothing_left(redis_client)


async def _workers(server: Server, count: int) -> bool:
    async with AsyncClient(server.url) as client:
        return len((await client.queue_info()).workers or ()) == count
