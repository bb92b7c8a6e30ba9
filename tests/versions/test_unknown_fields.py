"""What a later version adds, this one passes over: in every message, hash, heartbeat and in the metadata.
What it must not pass over it refuses, with a word on what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from pydantic import BaseModel
from support.servers.servers import Server
from support.wire.desk import Desk
from support.workers.counting_worker import counted, model_name, serving
from support.workers.hand_worker import hand_worker

from millstream import AsyncClient, Lane, ProtocolError
from millstream.wire import calls
from millstream.wire.calls import Claim
from millstream.wire.keys import QueueKeys
from millstream.wire.messages import codec
from millstream.wire.messages.choices import Choice, ChoiceDelta, Delta
from millstream.wire.messages.job_messages import ErrorInfo, Request, Result, Timing, Usage
from millstream.wire.messages.record import read_job
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.state.heartbeat import Heartbeat
from millstream.wire.state.queue_info import QueueInfo, open_queue, read_queue
from millstream.wire.versions import FIRST_VERSION, TAKEN, Versions

SHARD = QueueKeys("default").shard(0)
LATER = Versions(FIRST_VERSION, TAKEN.high + 1)
ADDED = {"added_later": {"deep": [1, "two", None]}}


def with_more(fields: Any) -> Any:
    """The same value with an unknown field in every map that is a message."""
    match fields:
        case dict():
            return {name: with_more(value) for name, value in fields.items()} | ADDED
        case list() | tuple():
            return [with_more(value) for value in fields]
        case _:
            return fields


@pytest.mark.parametrize(
    "message",
    [
        Request(prompt="w1", sampling=SamplingParams(max_tokens=3), stream=True),
        Request(messages=({"role": "user", "content": "w1"},)),
        Delta(choices=(ChoiceDelta(token_ids=(1,), text="w1"), ChoiceDelta(index=1, finish_reason="stop"))),
        Result(
            choices=(Choice(text="w1", token_ids=(1,), finish_reason="length"),),
            usage=Usage(prompt_tokens=1),
            error=ErrorInfo(code="c", message="m"),
            timing=Timing(submitted_ms=5),
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_unknown_fields_of_messages_are_passed_over(message: BaseModel) -> None:
    later = codec.pack(with_more(codec.unpack(codec.encode(message))))
    assert codec.decode(type(message), later) == message


def test_a_message_without_a_version_is_of_the_first() -> None:
    """Whatever this build writes: those that say nothing were written before there were two."""
    assert Request.model_fields["version"].default == Result.model_fields["version"].default == FIRST_VERSION


def test_unknown_fields_of_heartbeats_are_passed_over() -> None:
    later = {"name": "a-1", "model": "tiny", "version_min": "1", "version_max": "2", "rows_running": "3"}
    assert Heartbeat.parse(later | {"gpu": "h200"}) == Heartbeat("a-1", 1, 2, model="tiny", rows_running=3)
    assert Heartbeat.parse({"name": "a-1", "model": "tiny"}).versions == Versions(1, 1)


async def test_unknown_fields_of_the_metadata_are_kept_and_passed_over(
    redis_client: redis.asyncio.Redis,
) -> None:
    await open_queue(redis_client, "docs")
    await redis_client.hset(QueueKeys("docs").meta, "added_later", "x")
    assert await open_queue(redis_client, "docs", takes=LATER) == QueueInfo(version_max=LATER.high)
    assert await redis_client.hget(QueueKeys("docs").meta, "added_later") == b"x"
    assert await read_queue(redis_client, "docs") == QueueInfo(version_max=LATER.high)


async def test_a_window_is_widened_at_maxmemory(server: Server, redis_client: redis.asyncio.Redis) -> None:
    """Or no upgraded worker could start on a full server, which needs one."""
    await open_queue(redis_client, "docs")
    await redis_client.config_set("maxmemory", "1")
    try:
        widened = await open_queue(redis_client, "docs", takes=LATER)
    finally:
        await redis_client.config_set("maxmemory", "0")
    assert widened.versions == LATER


async def test_unknown_fields_of_jobs_entries_and_logs_are_passed_over(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    """Begun by a later version, continued by a worker of this one."""
    later = codec.pack({"prompt": "w1", "sampling": {"max_tokens": 6, **ADDED}, **ADDED})
    async with AsyncClient(server.url) as client, hand_worker(server.url) as first:
        submit = calls.submit(
            SHARD, job_id="0-a", lane="batch", payload=later, digest="d", version=1, deadline_ms=None,
            stream=True, max_entries=9, max_bytes=10**6,
        )  # fmt: skip
        await calls.run(redis_client, submit)
        job = await first.take()
        await redis_client.hset(SHARD.job("0-a"), "added_later", "x")
        body = codec.pack({"choices": [{"token_ids": [2, 3], "text": "w2 w3", **ADDED}], **ADDED})
        await redis_client.xadd(SHARD.tokens("0-a"), {"k": "d", "b": body, "added_later": "x"}, id="1-1")
        await redis_client.hset(SHARD.job("0-a"), "seq", 1)
        release = calls.release(SHARD, job.claim, lane="batch")
        await calls.run(redis_client, release)
        await redis_client.publish(SHARD.control, "compact everything")
        async with serving(server, model_name(tokenizer)):
            text = "".join([event.text async for event in client.stream("0-a")])
            result = await client.wait("0-a", timeout_s=30)
        assert text == result.choices[0].text == counted(2, 6)
        assert (result.attempts, result.choices[0].token_ids) == (2, (2, 3, 4, 5, 6, 7))
        record = await read_job(redis_client, SHARD, "0-a")
        assert record is not None
        assert record.last_seq >= 2


async def test_a_lane_of_a_later_version_is_told_by_its_name(server: Server) -> None:
    async with AsyncClient(server.url) as client, redis.asyncio.Redis.from_url(server.url) as direct:
        job = await client.submit("w1")
        status = await client.status(job.id)
        assert (status.lane, type(status.lane)) == (Lane.BATCH, Lane)
        await direct.hset(SHARD.job(job.id), "lane", "overnight")
        assert (await client.status(job.id)).lane == "overnight"


@pytest.fixture
async def newer(desk: Desk) -> Claim:
    """A running job of a later version, whose first delta this build can read."""
    desk.keys = SHARD
    await desk.open()
    held = await desk.begin("0-newer", version=LATER.high)
    await desk.append(held, 1, codec.encode(Delta(choices=(ChoiceDelta(text="a"),))))
    return held


async def test_a_stream_that_cannot_be_read_ends_with_what_to_do(
    desk: Desk, newer: Claim, client: AsyncClient
) -> None:
    await desk.redis.xadd(SHARD.tokens("0-newer"), {"k": "X", "b": "text"}, id="1-2")
    upgrade = rf"0-newer is of message version {LATER.high}, and this client takes {TAKEN}: upgrade it"
    with pytest.raises(ProtocolError, match=upgrade):
        [event async for event in client.stream("0-newer")]


async def test_a_live_entry_that_cannot_be_read_does_so_too(
    desk: Desk, newer: Claim, client: AsyncClient
) -> None:
    events = client.stream("0-newer")
    assert (await anext(events)).text == "a"
    pushed = codec.pack({"choices": [{"text": "b", "finish_reason": "moved"}]})
    await desk.append(newer, 2, pushed)
    with pytest.raises(ProtocolError, match=r"upgrade it .*finish_reason"):
        await anext(events)


async def test_a_result_that_cannot_be_read_does_so_too(
    desk: Desk, newer: Claim, client: AsyncClient
) -> None:
    await desk.finish(newer, 2, result=codec.pack({"choices": [{"text": ["no", "string"]}]}))
    with pytest.raises(ProtocolError, match=rf"version {LATER.high}, .* takes {TAKEN}: upgrade it .*text"):
        await client.result("0-newer")
