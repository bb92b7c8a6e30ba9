"""Equal lines of a batch are one job, however their rows are written."""

from __future__ import annotations

import openai
import pytest
from support.batches import answered, files_of, finished, made
from support.equal_batch_lines import cached, lines_of, taken
from support.gateway import Gateway
from support.servers.servers import Server
from support.workers.counting_worker import until_read
from support.workers.hand_worker import HandWorker, hand_worker

from millstream.gateway.redis.tenant_keys import TenantKeys


async def test_equal_lines_are_one_job_with_a_row_for_each(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    lines = lines_of("aaba")
    for line, expected in zip(lines, ("done", "no", None, "Done."), strict=True):
        line["body"] |= {"metadata": {"expected": expected}} if expected else {}
    batch = await made(client, lines)
    a, b = await taken(worker, "ab")
    await b.end(last="b")
    await a.end(last="done")
    done = await finished(client, batch.id)
    output, errors = await files_of(client, done)
    assert errors == []
    assert answered(output) == {"r1": "done", "r2": "done", "r3": "b", "r4": "done"}
    assert cached(output) == {"r2", "r4"}
    rows = {row["custom_id"]: row["response"] for row in output}
    assert rows["r2"]["request_id"] == rows["r1"]["request_id"]
    assert rows["r2"]["body"]["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    assert rows["r4"]["body"]["metadata"] == {"expected": "Done."}
    told = done.to_dict()
    assert told["expected"] == {"total": 3, "agreed": 2}
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (2, len("doneb"))
    assert told["request_counts"] == {"total": 4, "completed": 4, "failed": 0}


async def test_equal_prompts_of_two_models_are_two_jobs(
    door: Gateway, worker: HandWorker, valkey: Server
) -> None:
    lines = lines_of("aaaa")
    for line in lines[1::2]:
        line["body"]["model"] = "other"
    async with hand_worker(valkey.url, "other") as second, door.client() as client:
        batch = await made(client, lines)
        await (await second.take()).end(last="other")
        await (await worker.take()).end(last="default")
        output, _ = await files_of(client, await finished(client, batch.id))
        assert answered(output) == {"r1": "default", "r2": "other", "r3": "default", "r4": "other"}


@pytest.mark.parametrize("closing", ["cancelled", "expired"])
async def test_lines_that_wait_for_an_equal_one_are_closed(
    worker: HandWorker, closing: str, client: openai.AsyncOpenAI
) -> None:
    batch = await made(client, lines_of("aab"))
    await until_read(lambda: worker.redis.keys(worker.keys.job("*")), lambda keys: len(keys) == 2)
    if closing == "cancelled":
        await client.batches.cancel(batch.id)
    else:
        key = TenantKeys("").batch(batch.id)
        await worker.redis.hset(key, "expires_s", batch.created_at)
    done = await finished(client, batch.id)
    assert done.status == closing
    output, errors = await files_of(client, done)
    codes = {row["custom_id"]: row["error"]["code"] for row in errors}
    assert (output, codes) == ([], dict.fromkeys(("r1", "r2", "r3"), f"batch_{closing}"))
