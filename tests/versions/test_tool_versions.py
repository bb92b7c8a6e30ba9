"""Tools that are strict, and calls that do not fit, beside workers and clients that know neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.versions.next_version import Build
from support.workers.counting_worker import counted, model_name, write_tokenizer
from support.workers.hand_worker import UNFIT_CALL, hand_worker
from support.workers.work import record_of

from millstream import AsyncClient, Transcript
from millstream.wire.messages.choices import ToolCallDelta

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("server", ["valkey"], indirect=True)]

GET = {"name": "get", "parameters": {"type": "object"}, "strict": True}
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "w1"}], "tools": [{"type": "function", "function": GET}],
    "tool_choice": "required", "max_tokens": 3,
}  # fmt: skip


async def test_an_older_worker_answers_what_is_strict(
    server: Server, redis_client: redis.asyncio.Redis, tmp_path: Path, earlier: Build
) -> None:
    """Its engine counts, and calls nothing: the answer was cut."""
    model = model_name(write_tokenizer(tmp_path, chat=True))
    async with AsyncClient(server.url) as client:
        with earlier.worker(server, model, name="older"):
            job = await client.submit(**ASK)
            [choice] = (await client.wait(job.id, timeout_s=60)).choices
            record = await record_of(redis_client, job.id)
    assert (record.version, record.owner.startswith("older-")) == (3, True)
    assert (choice.text, choice.complete, choice.schema_error) == (counted(2, 3), False, "")


async def test_an_older_client_sees_that_an_answer_is_not_whole(server: Server, earlier: Build) -> None:
    async with AsyncClient(server.url) as client, hand_worker(server.url) as worker:
        job = await client.submit(**ASK)
        await (await worker.take()).end(last="x", calls_with=UNFIT_CALL)
        async with earlier.client(server) as foreign:
            fields = await foreign.choice(job.id)
    assert "schema_error" not in fields
    assert (fields["complete"], fields["finish_reason"]) == (False, "tool_calls")
    assert [call["function"]["name"] for call in fields["tool_calls"]] == ["get"]


async def test_an_older_client_gets_calls_that_were_streamed(server: Server, earlier: Build) -> None:
    """It passes over their pieces, and has them at the end."""
    async with AsyncClient(server.url) as client, hand_worker(server.url) as worker:
        job = await client.submit(**ASK, stream=True)
        taken = await worker.take()
        await taken.say("Well")
        await taken.say("", tool_call_deltas=(ToolCallDelta(id="call_1", name="get", arguments='{"a"'),))
        await taken.end(last="", calls_with=UNFIT_CALL)
        seen = Transcript()
        async for event in client.stream(job.id):
            seen.add(event)
        async with earlier.client(server) as foreign:
            fields = await foreign.choice(job.id)
    assert fields["text"] == seen.text() == "Well"
    assert [call["function"]["arguments"] for call in fields["tool_calls"]] == ['{"a": "x"}']
    assert [call.function.arguments for call in seen.tool_calls()] == ['{"a": "x"}']
