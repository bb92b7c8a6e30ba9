"""Requests that only ask for the tokens of their prompt: read as any other, and never computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from support.servers.servers import BOTH, Server
from support.wire.desk import Desk
from support.workers.counting_worker import assert_nothing_left, counted, until_read, write_tokenizer
from support.workers.work import SHARD, Work, outcome

from millstream import AsyncClient, Client, Conflict, EndEvent, InvalidRequest, JobFailed, PromptTokens
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request, RequestKind

COUNT: dict[str, Any] = {"kind": RequestKind.COUNT}


async def alive(client: AsyncClient) -> None:
    """Wait for the worker's heartbeat: without one nobody counts."""
    await until_read(client.queue_info, lambda queue: queue.workers)


# What the client sends, and only a worker can refuse.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "w1 " * 80}, "prompt"),
    ({"prompt": "w1 " * 40_000}, "prompt"),  # it is put off for its length
    ({"prompt": "w1 w2", "max_tokens": 63}, "sampling.max_tokens"),
    ({"prompt": "w1", "logit_bias": {5000: 1.0}}, "sampling.logit_bias"),
    ({"token_ids": [1000]}, "token_ids"),
    ({"messages": [{"role": "user", "content": "w1"}]}, "messages"),
]


@BOTH
async def test_a_count_is_of_the_prompt_and_computes_nothing(
    client: AsyncClient, redis_client: Redis, work: Work
) -> None:
    work.hold(0)  # no row ever draws a token
    async with work(rows=1) as worker:
        await alive(client)
        assert await client.count("w7 w8 w9", max_tokens=5, n=3) == PromptTokens(3)
        assert await client.count(token_ids=[1, 2], tenant="a", lane="interactive") == PromptTokens(2)
        many = await client.count_many({"prompt": "w1 " * number} for number in range(1, 61))
        assert many == [PromptTokens(number) for number in range(1, 61)]
        assert worker.metric("generation_tokens_total") == 0
        assert await redis_client.keys("*:job:*") == []
        work.go(0)
        assert (await outcome(client, "w1", 2)).text == counted(2, 2)
    await assert_nothing_left(redis_client)


async def test_a_count_renders_the_chat(client: AsyncClient, server: Server, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"}]
    work = Work(server, write_tokenizer(tmp_path, chat=True), tmp_path)
    async with work():
        await alive(client)
        plain = await client.count(messages=messages)
        assert plain == PromptTokens(3)
        more = await client.count(messages=messages, chat_template_kwargs={"last": "w5 w6"})
        assert more == PromptTokens(5)


async def test_a_count_is_refused_as_its_answer_would_be(client: AsyncClient, work: Work) -> None:
    async with work(context=64):
        await alive(client)
        for fields, name in REFUSED:
            with pytest.raises(JobFailed) as failed:
                await client.count(**fields)
            error = failed.value.result.error
            code = "context_length_exceeded" if "maximum context" in error.message else "bad_request"
            assert (error.code, error.field) == (code, name)
        with pytest.raises(InvalidRequest, match="tempo"):
            await client.count("w1", tempo=1)  # type: ignore[call-arg]
        mixed = await client.count_many([{"prompt": "w1"}, {"prompt": ""}, {"prompt": "w1 " * 80}])
    assert mixed[0] == PromptTokens(1)
    assert [type(one) for one in mixed[1:]] == [InvalidRequest, JobFailed]


async def test_a_count_and_an_answer_share_no_result(client: AsyncClient, work: Work) -> None:
    """Neither over the result cache nor over their id."""
    exact: dict[str, Any] = {"temperature": 0.0, "max_tokens": 5}
    async with work(result_cache=2**20) as worker:
        await alive(client)
        for _ in range(2):
            assert await client.count("w1", **exact) == PromptTokens(1)
        first = await outcome(client, "w1", 5, temperature=0.0)
        assert (first.cached, first.text) == (False, counted(2, 5))
        assert await client.count("w1", **exact) == PromptTokens(1)
        assert (await outcome(client, "w1", 5, temperature=0.0)).cached
        told = (worker.metric("result_cache_hits_total"), worker.metric("result_cache_misses_total"))
        assert told == (1, 1)
        request = Request(prompt="w1")
        await client.submit_many([{"request": request, "id": "same"}])
        [other] = await client.submit_many([{"request": request.model_copy(update=COUNT), "id": "same"}])
        assert isinstance(other, Conflict)


async def test_a_count_streams_nothing_but_its_end(client: AsyncClient, work: Work) -> None:
    async with work():
        asked = Request(prompt="w1 w2", stream=True).model_copy(update=COUNT)
        [job] = await client.submit_many([{"request": asked}])
        assert not isinstance(job, Exception)
        events = [event async for event in client.stream(job.id)]
        result = await client.wait(job.id, timeout_s=30)
    assert [type(event) for event in events] == [EndEvent]
    assert (result.choices, result.usage.prompt_tokens, result.usage.output_tokens) == ((), 2, 0)
    assert (result.version, result.seed, result.timing.admitted_ms) == (4, None, None)


@pytest.mark.parametrize("died", [0, 9])
async def test_a_count_of_a_dead_worker_is_taken_over(
    client: AsyncClient, redis_client: Redis, work: Work, died: int
) -> None:
    """Also as a suspect, which is read alone."""
    payload = codec.encode(Request(prompt="w1 w2", version=4).model_copy(update=COUNT))
    desk = await Desk(redis_client, SHARD).open()
    await desk.begin("0-dead", version=4, payload=payload)
    await redis_client.hset(SHARD.job("0-dead"), "died", died)
    async with work():
        result = await client.wait("0-dead", timeout_s=30)
    assert (result.usage.prompt_tokens, result.choices, result.attempts) == (2, (), 2)


def test_the_client_without_asyncio_counts_too(server: Server) -> None:
    with Client(server.url) as client:
        assert client.count("four bytes a token.") == PromptTokens(4, estimated=True)
        assert client.count_many([{"prompt": "x" * 40}]) == [PromptTokens(10, estimated=True)]
