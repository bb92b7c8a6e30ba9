"""A format for all lines of a batch, and records that have no fields of it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from support.batches import CHAT, chat, finished, made, upload
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker, register

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.versions import TAKEN

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


async def test_a_format_is_that_of_lines_that_ask_for_none(
    worker: HandWorker, valkey: Server, client: openai.AsyncOpenAI
) -> None:
    register(valkey.port, worker.keys, version_max=str(TAKEN.high))
    own: list[dict[str, Any]] = [
        {}, {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}},
        {"tools": [TOOL]},
    ]  # fmt: skip
    lines = [chat(number, f"w{number}", 5) for number in range(len(own))]
    for line, more in zip(lines, own, strict=True):
        line["body"] |= more
    batch = await made(client, lines, extra_body={"response_format": SCHEMA})
    assert batch.to_dict()["response_format"] == SCHEMA
    formats: dict[Any, str | None] = {}
    for _ in lines:  # those of a later message version may wait for the gateway's next look at the workers
        job = await worker.take()
        [message], form = job.request.messages or (), job.request.response_format
        formats[message.content] = None if form is None else form.type
        await job.end(last="{}", complete=True)
    assert formats == {"w0": "json_schema", "w1": None, "w2": "json_object", "w3": None}
    assert (await finished(client, batch.id)).status == "completed"


@pytest.mark.parametrize(
    "wrong",
    ["json", {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 1}}],
)
async def test_a_wrong_format_is_named(wrong: Any, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await made(client, [chat(1, "w1", 2)], extra_body={"response_format": wrong})
    assert str(refused.value.param).startswith("response_format")


async def test_a_batch_of_another_version_is_finished(
    worker: HandWorker, catalogue: BatchCatalogue, access: GatewayRedis, client: openai.AsyncOpenAI
) -> None:
    """An older gateway wrote neither format nor order, and counted no expected; a later one writes more."""
    lines = [chat(number, "w1", 2) for number in range(2)]
    lines[1]["body"]["metadata"] = {"expected": "done"}
    fields = {
        "endpoint": CHAT, "input_file_id": await upload(client, lines), "completion_window": "24h",
        "metadata": "null", "queues": "[]", "output_lasts_s": "0", "of_a_later_version": "{}",
    }  # fmt: skip
    await catalogue.create("", "batch_other", fields, window_s=600, charge="", lasts_s=600)
    for _ in lines:
        job = await worker.take()
        assert job.request.response_format is None
        await job.end(last="done")
    done = (await finished(client, "batch_other")).to_dict()
    assert (done["status"], done["expected"]) == ("completed", {"total": 1, "agreed": 1})
    assert not done.keys() & {"response_format", "in_order", "groups", "shared_tokens"}
    record = await access.client.hgetall(TenantKeys("").batch("batch_other"))
    assert record[b"of_a_later_version"] == b"{}"
