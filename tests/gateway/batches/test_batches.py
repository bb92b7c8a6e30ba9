"""Batches from end to end: OpenAI's own client, a real gateway, a worker that counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.batches import (
    CHAT,
    Line,
    answered,
    chat,
    counts,
    faults,
    files_of,
    finished,
    made,
    rows_counted,
    rows_of,
    upload,
)
from support.gateway import Gateway, add_key, api_error
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until, write_tokenizer
from support.workers.hand_worker import UNFIT_CALL, HandJob, HandWorker

from millstream import AsyncClient, State
from millstream.gateway.redis.tenant_keys import TenantKeys
from millstream.wire.messages.script_replies import AppendOutcome

LINES = [chat(number, "w1", 2) for number in range(1, 4)]


@pytest.fixture
async def counting(
    door: Gateway, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """A worker of the queue default, whose checkpoint is `counting`."""
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("chat"), chat=True)
    async with serving(valkey, model_name(tokenizer)), AsyncClient(valkey.url) as client:

        async def serves() -> bool:
            return [one.model for one in (await client.queue_info()).workers or ()] == ["counting"]

        await until(serves)
        await until(lambda: b'"root":"counting"' in door.get("/v1/models"))
        yield


async def test_the_whole_life_of_a_batch(counting: None, client: openai.AsyncOpenAI) -> None:
    lines = [chat(number, f"w{number}", 3) for number in range(1, 51)]
    lines.append(chat(51, "w1", 10**6))  # only the worker can tell
    lines.append(chat(52, "w9", 2) | {"body": {**chat(52, "w9", 2)["body"], "model": "counting"}})
    batch = await made(client, lines, metadata={"order": "7"})
    assert (batch.status, batch.object, batch.metadata) == ("validating", "batch", {"order": "7"})
    assert batch.expires_at == batch.created_at + 86_400
    assert (batch.output_file_id, batch.error_file_id, batch.errors) == (None, None, None)
    assert batch.request_counts is not None
    assert batch.request_counts.total == 0
    done = await finished(client, batch.id)
    assert done.status == "completed"
    assert done.to_dict()["request_counts"] == {"total": 52, "completed": 51, "failed": 1}
    usage = done.to_dict()["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (51, 152, 203)
    times = [batch.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(times)
    assert (done.failed_at, done.expired_at, done.cancelled_at) == (None, None, None)
    output, errors = await files_of(client, done)
    assert answered(output) == {f"r{number}": counted(number + 1, 3) for number in range(1, 51)} | {
        "r52": counted(10, 2)
    }
    [error] = errors
    assert (error["custom_id"], error["error"]["param"]) == ("r51", "body.max_tokens")
    assert error["response"]["status_code"] == 400
    listed = [one.id async for one in client.batches.list()]
    assert listed == [batch.id]


@pytest.mark.slow
async def test_usage_grows_while_rows_run(door: Gateway, valkey: Server, tmp_path: Path) -> None:
    """A row that is written is counted once."""
    tokenizer, gate = write_tokenizer(tmp_path / "chat", chat=True), tmp_path / "gate"
    gate.mkdir()
    (gate / "30").touch()
    async with serving(valkey, model_name(tokenizer, gate=gate)), door.client() as client:
        await until(lambda: door.shows_ready(True))
        batch = await made(client, [chat(1, "w1", 50), chat(2, "w1", 20)])
        seen: set[tuple[int, int]] = set()

        async def look() -> bool:
            now = await client.batches.retrieve(batch.id)
            seen.add((counts(now)[0], now.to_dict()["usage"]["output_tokens"]))
            return (1, 50) in seen

        await until(look)
        assert max(tokens for _, tokens in seen) == 50
        (gate / "30").unlink()
        done = await finished(client, batch.id)
        assert done.to_dict()["usage"]["output_tokens"] == 70


def line_of(number: int, **more: Any) -> Line:
    line = chat(number, "w1", 2)
    return line | {"body": line["body"] | more}


@pytest.mark.slow
async def test_an_invalid_input_fails_with_a_reason_for_each_line(
    counting: None, client: openai.AsyncOpenAI
) -> None:
    """It is not tried again, and no other one waits."""
    huge = {"type": "json_schema", "json_schema": {"schema": {"multipleOf": 10**400}}}
    wrong: list[tuple[Line | bytes, str, str | None]] = [
        (b"{", "invalid_json", None),
        (chat(1, "w1", 2), "duplicate_custom_id", "custom_id"),
        (chat(2, "w1", 2) | {"url": "/v1/completions"}, "mismatched_url", "url"),
        (line_of(3, model="nobody/has-it"), "model_not_found", "body.model"),
        (line_of(4, audio={"voice": "x"}), "unsupported_parameter", "body.audio"),
        (line_of(5, response_format=huge), "invalid_field", "body.response_format.json_schema.schema"),
        (line_of(6, chat_template_kwargs=json.loads('{"a":' * 300 + "1" + "}" * 300)), "invalid_field",
         "body.chat_template_kwargs"),
        (chat(7, "w1", 2) | {"body": {"messages": [{"role": "user", "content": "w1"}]}},
         "missing_field", "body.model"),
    ]  # fmt: skip
    batch = await made(client, [chat(1, "w1", 2), b"", *(line for line, _, _ in wrong)])
    done = await finished(client, batch.id)
    assert done.status == "failed"
    assert done.failed_at is not None
    assert (done.in_progress_at, done.output_file_id, done.error_file_id) == (None, None, None)
    assert faults(done) == [(place, code, param) for place, (_, code, param) in enumerate(wrong, 3)]
    assert len(faults(await finished(client, (await made(client, [b"{"] * 150)).id))) == 100
    more = [chat(place, "w1", 1) for place in range(201)]
    bounds = (([], "empty_file"), ([b"x" * 25_200_000], "line_too_long"), (more, "too_many_lines"))
    for lines, code in bounds:
        failed = await finished(client, (await made(client, lines)).id)
        assert [told for _, told, _ in faults(failed)] == [code]
    assert (await finished(client, (await made(client, LINES)).id)).status == "completed"


async def test_a_cancelled_batch_keeps_what_it_has(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    """One job has ended, one runs, one waits."""
    batch = await made(client, LINES)
    done, running = await worker.take(), await worker.take()
    await done.end(last="done")
    await until(lambda: rows_counted(client, batch.id, 1))
    cancelled = await client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
    await until(lambda: is_told_to_end(running))
    await running.end(state=State.CANCELLED)
    ended = await finished(client, batch.id)
    assert (ended.status, ended.completed_at) == ("cancelled", None)
    output, errors = await files_of(client, ended)
    assert answered(output) == {"r1": "done"}
    codes = {row["custom_id"]: row["error"]["code"] for row in errors}
    assert codes == {"r2": "batch_cancelled", "r3": "batch_cancelled"}
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve("file-" + "0" * 32)
    waiting = await worker.redis.xrange(worker.keys.lane("batch"))
    own = [entry for entry in waiting if batch.id.removeprefix("batch_") in str(entry)]
    assert len(own) <= 1  # of a job that was cancelled, unread
    early = await made(client, LINES)
    assert (await client.batches.cancel(early.id)).status in ("cancelling", "cancelled")
    assert (await finished(client, early.id)).status == "cancelled"


async def is_told_to_end(job: HandJob) -> bool:
    return (await job.say("x")) == AppendOutcome.CANCELLED


async def test_calls_that_do_not_fit_are_in_the_error_file(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    batch = await made(client, LINES[:2])
    await (await worker.take()).end(last="done")
    await (await worker.take()).end(last="x", calls_with=UNFIT_CALL)
    ended = await finished(client, batch.id)
    assert (ended.status, counts(ended)) == ("completed", (1, 1))
    output, [row] = await files_of(client, ended)
    assert len(output) == 1
    assert row["error"]["code"] == "schema_mismatch"
    assert UNFIT_CALL["schema_error"] in row["error"]["message"]
    [choice] = row["response"]["body"]["choices"]
    assert (row["response"]["status_code"], choice["complete"]) == (200, False)
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a": "x"}'


async def test_an_expired_batch_keeps_what_it_has(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    batch = await made(client, LINES, completion_window="1m")
    assert batch.expires_at == batch.created_at + 60
    await (await worker.take()).end(last="done")
    await until(lambda: rows_counted(client, batch.id, 1))
    key = TenantKeys("").batch(batch.id)
    await worker.redis.hset(key, "expires_s", batch.created_at)  # a minute passes
    ended = await finished(client, batch.id)
    assert ended.status == "expired"
    assert None not in (ended.finalizing_at, ended.expired_at)
    assert (ended.completed_at, ended.cancelled_at) == (None, None)
    output, errors = await files_of(client, ended)
    assert answered(output) == {"r1": "done"}
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert counts(ended) == (1, 2)
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)


async def test_a_batch_whose_input_is_deleted_ends(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client, LINES)
    batch = await client.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    await worker.take()
    await client.files.delete(file_id)
    await client.batches.cancel(batch.id)
    ended = await finished(client, batch.id)
    assert (ended.status, [code for _, code, _ in faults(ended)]) == ("failed", ["input_file_gone"])


async def test_pages_of_batches(client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client, LINES)
    make = partial(client.batches.create, input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    ids = [(await make()).id for _ in range(3)][::-1]
    assert [one.id async for one in client.batches.list(limit=1)] == ids
    assert [one.id for one in (await client.batches.list(limit=2)).data] == ids[:2]
    assert (await client.batches.list(after=ids[-1])).data == []


async def test_the_files_of_a_batch_are_its_tenants(door: Gateway, valkey: Server, counting: None) -> None:
    owner, other = [await asyncio.to_thread(add_key, valkey, tenant) for tenant in ("acme", "bolt")]
    async with door.client(owner) as client, door.client(other) as foreign:
        batch = await finished(client, (await made(client, LINES)).id)
        assert batch.status == "completed"
        for file_id in (batch.input_file_id, batch.output_file_id):
            assert file_id is not None
            with pytest.raises(openai.NotFoundError):
                await foreign.files.content(file_id)


async def test_a_key_limits_its_batches(door: Gateway, valkey: Server, worker: HandWorker) -> None:
    """Enqueued tokens are given back when the batch ends; queues and lanes are those of the key."""
    size = sum(len(json.dumps(line)) + 1 for line in LINES) // 4
    key = await asyncio.to_thread(
        add_key, valkey, "acme", "--max-enqueued-tokens", size + 1, "--queue", "default"
    )
    lane = await asyncio.to_thread(add_key, valkey, "acme", "--lane", "interactive")
    other = await asyncio.to_thread(add_key, valkey, "acme", "--queue", "other")
    async with door.client(key) as client:
        first = await made(client, LINES)
        with pytest.raises(openai.RateLimitError) as caught:
            await made(client, LINES)
        assert api_error(caught.value)["code"] == "rate_limit_exceeded"
        await client.batches.cancel(first.id)
        await finished(client, first.id)
        again = await made(client, LINES)
        await client.batches.cancel(again.id)
        await finished(client, again.id)
        assert not await worker.redis.zcard(TenantKeys("acme").enqueued)
    async with door.client(lane) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await made(client, LINES)
    async with door.client(other) as client:
        refused = await finished(client, (await made(client, LINES)).id)
        assert {code for _, code, _ in faults(refused)} == {"model_not_found"}


async def test_a_key_of_one_queue_need_not_name_it(door: Gateway, valkey: Server, worker: HandWorker) -> None:
    lines = [chat(number, "w1", 2) for number in range(2)]
    del lines[0]["body"]["model"]
    one = await asyncio.to_thread(add_key, valkey, "acme", "--queue", "default")
    two = await asyncio.to_thread(add_key, valkey, "acme", "--queue", "default", "--queue", "other")
    async with door.client(one) as client:
        batch = await made(client, lines)
        for _ in lines:
            await (await worker.take()).end(last="done")
        done = await finished(client, batch.id)
        assert (done.status, done.to_dict()["model"]) == ("completed", "default")
    async with door.client(two) as client:
        failed = await finished(client, (await made(client, lines)).id)
        assert faults(failed) == [(1, "missing_field", "body.model")]


async def test_a_repeated_post_is_one_batch(client: openai.AsyncOpenAI) -> None:
    file_id = await upload(client, LINES)
    make = partial(client.batches.create, input_file_id=file_id, endpoint=CHAT, completion_window="24h")
    once = {"extra_headers": {"Idempotency-Key": "order-7"}}
    assert len({(await make(**once)).id for _ in range(2)}) == 1
    with pytest.raises(openai.ConflictError):
        await make(**once, metadata={"a": "b"})
    assert len({(await make()).id for _ in range(2)}) == 2
    assert len((await client.batches.list()).data) == 3


async def test_results_as_they_finish(door: Gateway, worker: HandWorker) -> None:
    """As lines and as events, from the beginning and from where the reader was."""
    async with door.client() as client, httpx2.AsyncClient(base_url=door.url, timeout=30) as http:
        batch = await made(client, LINES)
        path = f"/v1/batches/{batch.id}/results"
        async with http.stream("GET", path, headers={"accept-encoding": "gzip"}) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            lines = answer.aiter_lines()
            for number in range(1, 4):
                await (await worker.take()).end(last=f"answer {number}")
                assert json.loads(await anext(lines))["custom_id"] == f"r{number}"
            assert [line async for line in lines] == []
        await finished(client, batch.id)
        for after in range(4):
            rows = rows_of((await http.get(path, params={"after": after})).content)
            assert [row["custom_id"] for row in rows] == [f"r{number}" for number in range(after + 1, 4)]
        events = await http.get(path, headers={"accept": "text/event-stream", "last-event-id": "2"})
        [event, done, _] = events.text.split("\n\n")
        assert event.startswith('id: 3\ndata: {"id":"batch_req_')
        assert done == "data: [DONE]"
        assert (await http.head(path)).content == b""
        wrong = await http.get(path, params={"after": "-1"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "after")
        metrics = (await http.get("/metrics")).text
        assert 'millstream_gateway_batch_rows_total{result="completed"}' in metrics
        assert "millstream_gateway_open_batches" in metrics
