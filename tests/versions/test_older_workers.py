"""Requests with fields of a newer version beside a worker of an older build, which would ignore them: it
leaves them alone, uncharged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.servers.servers import Server
from support.versions.next_version import older_build
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    until_read,
    write_tokenizer,
)
from support.workers.work import record_of

from millstream import AsyncClient, JobFields, PromptTokens, Submitted
from millstream.wire.messages.job_messages import Request, RequestKind
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.versions import ADDED

pytestmark = pytest.mark.slow
TEMPLATE = "{% for m in messages %}{{ m.content }} w99 {% endfor %}"
BEGUN = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w5 w6"}]
# By the field that came last: the request, and its answer's text, tokens and ids of the prompt.
CASES: dict[str, tuple[Request, tuple[Any, ...]]] = {
    "kind": (Request(prompt="w1 w2", stream=True).model_copy(update={"kind": RequestKind.COUNT}),
             ("", 2, None)),
    "sampling.bad_words": (
        Request(prompt="w1", sampling=SamplingParams(max_tokens=3, bad_words=("w900",))),
        (counted(2, 3), 1, None)),
    "return_token_ids": (Request.model_validate({
        "messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False,
        "return_token_ids": True, "sampling": {"max_tokens": 2, "truncate_prompt_tokens": 2},
    }), (" w7 w8", 2, (5, 6))),
}  # fmt: skip


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("field", CASES)
async def test_an_older_worker_leaves_newer_requests_alone(
    server: Server, redis_client: Redis, client: AsyncClient, tmp_path: Path, field: str
) -> None:
    tokenizer = write_tokenizer(tmp_path / "chat", chat=True, template=TEMPLATE)
    older, model = older_build(tmp_path / "older", ADDED[field] - 1), model_name(tokenizer)
    request, answer = CASES[field]
    with older.worker(server, model, name="older"):
        await until_read(client.queue_info, lambda queue: len(queue.workers or ()) == 1)
        async with AsyncClient(server.url) as early:
            assert (await early.count("w1 w2")).estimated is (field == "kind")
        async with serving(server, model, name="newer"):
            await until_read(client.queue_info, lambda queue: len(queue.workers or ()) == 2)
            plain = await client.submit("w5", max_tokens=3)
            jobs = await client.submit_many({"request": request, "id": str(number)} for number in range(20))
            for job in jobs:
                assert isinstance(job, Submitted)
                result = await client.wait(job.id, timeout_s=30)
                record = await record_of(redis_client, job.id)
                assert (result.text, result.usage.prompt_tokens, result.prompt_token_ids) == answer
                assert (record.version, result.attempts, record.died) == (ADDED[field], 1, 0)
                assert record.owner.startswith("newer-")
            assert (await record_of(redis_client, plain.id)).version == 1
            await client.wait(plain.id, timeout_s=30)
            if field == "kind":
                async with older.client(server) as foreign:
                    assert {await foreign.stream(f"0-{number}") for number in range(20)} == {""}
            many: list[JobFields] = [{"prompt": "w1 " * number} for number in range(1, 101)]
            assert await client.count_many(many) == [PromptTokens(number) for number in range(1, 101)]
    await assert_nothing_left(redis_client)
