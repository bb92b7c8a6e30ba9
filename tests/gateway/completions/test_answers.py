"""OpenAI's own client, unchanged, gets from the gateway what it gets from OpenAI."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
from support.gateway import HELLO, Gateway, api_error, is_served
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until, until_read, write_tokenizer
from support.workers.hand_worker import UNFIT_CALL, HandWorker, hand_worker

from millstream import ErrorInfo, State
from millstream.wire import calls
from millstream.wire.keys import GROUP, QueueKeys
from millstream.wire.state.queue_info import record_worker, serve_model
from millstream.wire.versions import TAKEN

CHAT: dict[str, Any] = {"model": "default", "messages": HELLO}


async def asked(call: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    return task


async def test_a_real_worker_answers_whole_and_streamed(
    door: Gateway, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("chat"), chat=True)
    ask: dict[str, Any] = {
        "model": "default",
        "messages": [{"role": "user", "content": "w5"}],
        "max_tokens": 4,
    }
    async with serving(valkey, model_name(tokenizer), lease_s=20.0, renew_s=2.0), door.client() as client:
        await until(lambda: is_served(client, "counting"))
        whole = await client.chat.completions.create(**ask, n=2, logprobs=True, top_logprobs=2, seed=7)
        texts = [choice.message.content for choice in whole.choices]
        assert texts == [counted(6, 4), counted(7, 4)]
        assert whole.model == "default"
        assert whole.id.startswith("chatcmpl-0-")
        assert whole._request_id.startswith("req_")
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (1, 8)
        logprobs = whole.choices[1].logprobs
        assert logprobs is not None
        assert [drawn.token for drawn in logprobs.content or ()] == [" w7", " w8", " w9", " w10"]

        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(**ask, **options, n=2, logprobs=True, seed=7)
        chunks = [chunk async for chunk in stream]
        assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
        assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        for index in range(2):
            own = [one for chunk in chunks for one in chunk.choices if one.index == index]
            assert (own[0].delta.role, own[0].delta.content) == ("assistant", "")
            assert "".join(one.delta.content or "" for one in own) == texts[index]
            assert [one.finish_reason for one in own] == [None] * (len(own) - 1) + ["length"]
            assert own[-1].delta.model_dump(exclude_unset=True) == {}
            assert sum(len(one.logprobs.content or ()) for one in own if one.logprobs) == 4

        text = await client.completions.create(model="counting", prompt="w5", max_tokens=4, logprobs=1)
        seen = (text.choices[0].text, text.model, text.object)
        assert seen == (counted(6, 4), "counting", "text_completion")
        told = await client.completions.create(
            model="default", prompt=[5], max_tokens=4, logprobs=1, stream=True, stop=["w9"]
        )
        parts = [chunk.choices[0] async for chunk in told]
        assert "".join(part.text for part in parts).strip() == counted(6, 3)
        assert parts[-1].finish_reason == "stop"
        offsets = [at for part in parts if part.logprobs for at in part.logprobs.text_offset or ()]
        assert offsets == sorted(set(offsets))

        with pytest.raises(openai.BadRequestError, match="400 - max_tokens: ") as caught:
            await client.chat.completions.create(**ask | {"max_tokens": 10**6}, stream=True)
        assert caught.value.param == "max_tokens"  # which only the worker can tell
        assert caught.value.code == "context_length_exceeded"
        assert "This model's maximum context length is" in str(caught.value)  # litellm's words for it


async def data_of(lines: AsyncIterator[str]) -> str:
    """The next event's."""
    [line, end] = await anext(lines), await anext(lines)
    assert (line[:6], end) == ("data: ", "")
    return line[6:]


async def test_a_stream_in_detail(
    worker: HandWorker, client: openai.AsyncOpenAI, http: httpx2.AsyncClient
) -> None:
    """Headers, the form of events, pings while the job waits, an error in the midst."""
    headers = {"x-client-request-id": "mine-1", "accept": "application/json", "accept-encoding": "gzip"}
    body = CHAT | {"stream": True}
    async with http.stream("POST", "/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200  # after a second, as nobody has answered yet
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-client-request-id"] == "mine-1"
        assert "content-encoding" not in answer.headers
        assert float(answer.headers["openai-processing-ms"]) >= 0
        lines = answer.aiter_lines()
        assert [await anext(lines), await anext(lines)] == [": ping", ""]
        job = await worker.take()
        await job.say("Hä\u2028l\x85l\u2029o")  # `aiter_lines` takes these for line ends
        events = [json.loads(await data_of(lines)) for _ in range(2)]
        await job.end(State.FAILED, error=ErrorInfo(code="engine_lost", message="too many deaths"))
        error = json.loads(await data_of(lines))["error"]
        assert [line async for line in lines] == []
    told = [one["choices"][0]["delta"] for one in events]
    assert told == [{"role": "assistant", "content": ""}, {"content": "Hä\u2028l\x85l\u2029o"}]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "engine_lost", None)
    stream = await asked(client.chat.completions.create(**CHAT, stream=True))
    job = await worker.take()
    await job.say("Hel")
    chunks = aiter(await stream)
    await anext(chunks)
    assert (await anext(chunks)).choices[0].delta.content == "Hel"
    await job.end(State.FAILED, error=ErrorInfo(code="engine_lost", message="too many deaths"))
    with pytest.raises(openai.APIError, match="too many deaths") as caught:
        await anext(chunks)
    assert caught.value.code == "engine_lost"


async def test_an_early_failure_of_a_stream_is_a_status(door: Gateway, worker: HandWorker) -> None:
    async with door.client(retries=2) as client:
        stream = await asked(client.chat.completions.create(**CHAT, stream=True))
        job = await worker.take()
        await job.end(State.FAILED, error=ErrorInfo(code="bad_request", message="too long", field="messages"))
        with pytest.raises(openai.BadRequestError) as caught:
            await stream
        assert (caught.value.param, caught.value.code) == ("messages", "bad_request")
        whole = await asked(client.chat.completions.create(**CHAT))
        job = await worker.take()
        await job.end(State.FAILED, error=ErrorInfo(code="died", message="it killed two engines"))
        with pytest.raises(openai.InternalServerError) as failed:  # at once: the client does not try again
            await whole
        assert failed.value.response.headers["x-should-retry"] == "false"
        assert api_error(failed.value)["type"] == "server_error"


async def test_answers_are_compressed_and_forgotten(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    waiting = await asked(http.post("/v1/chat/completions", json=CHAT))
    job = await worker.take()
    await job.end(last="long " * 1000)
    answer = await waiting
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["choices"][0]["message"]["content"] == "long " * 1000
    keys = worker.keys
    await until_read(
        lambda: worker.redis.exists(keys.job(job.id), keys.tokens(job.id)), lambda count: not count
    )
    waiting = await asked(http.post("/v1/chat/completions", json=CHAT | {"stream": True}))
    job = await worker.take()
    await job.end(last="x")
    assert (await waiting).text.endswith("data: [DONE]\n\n")
    await until_read(
        lambda: worker.redis.exists(keys.job(job.id), keys.tokens(job.id)), lambda count: not count
    )


async def test_calls_that_do_not_fit_say_so(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    """In a header where there is still time for one."""
    why = UNFIT_CALL["schema_error"]
    heads = []
    for ended in (UNFIT_CALL, UNFIT_CALL | {"complete": True, "schema_error": ""}):
        asking = http.post("/v1/chat/completions", json=CHAT)
        answer = await worker.answered(asking, last="x", calls_with=ended)
        heads.append(answer.headers.get("x-millstream-schema"))
        [choice] = answer.json()["choices"]
        seen = (choice["complete"], choice.get("schema_error", ""))
        assert seen == (ended["complete"], ended["schema_error"])
        [call] = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], call["function"]["arguments"]) == ("tool_calls", '{"a": "x"}')
    assert heads == ["partial", None]
    asking = http.post("/v1/chat/completions", json=CHAT | {"stream": True})
    events = (await worker.answered(asking, last="x", calls_with=UNFIT_CALL)).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in events if line[6:7] == "{"]
    ends = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert [(one["complete"], one["schema_error"]) for one in ends] == [(False, why)]
    assert not any("schema_error" in one["choices"][0] for one in chunks[:-1])


async def test_a_wait_that_is_too_long_ends_with_its_job(door: Gateway, worker: HandWorker) -> None:
    async with door.client(retries=2) as client:
        begun_s = time.monotonic()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(**CHAT)
        assert caught.value.status_code == 504
        assert caught.value.code == "timeout"
        assert 0.9 < time.monotonic() - begun_s < 5  # once
    assert await worker.redis.zcard(worker.keys.deadlines) == 0


async def test_without_a_worker_only_flex_requests_wait(
    door: Gateway, valkey: Server, client: openai.AsyncOpenAI
) -> None:
    await until(lambda: door.shows_ready(False))
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(**CHAT)
    assert (caught.value.status_code, caught.value.code) == (503, "no_worker")
    assert float(caught.value.response.headers["retry-after"]) > 0
    models = (await client.models.list()).data
    assert [(one.id, one.to_dict()["ready"]) for one in models] == [("default", False), ("other", False)]
    stream = await client.chat.completions.create(**CHAT, service_tier="flex", stream=True)  # it has begun
    await stream.close()


async def test_a_version_that_no_worker_takes_any_more_is_refused(
    worker: HandWorker, valkey: Server, client: openai.AsyncOpenAI
) -> None:
    """Before the client looks again, which it does every five seconds."""
    ask = CHAT | {"response_format": {"type": "json_object"}}
    await worker.redis.xgroup_createconsumer(worker.keys.lanes[-1], GROUP, "new")
    newer = {"name": "new", "model": "m", "version_max": str(TAKEN.high)}
    await worker.redis.hset(worker.keys.worker("new"), mapping=newer)

    async def code() -> str | None:
        try:
            await (await client.chat.completions.create(**ask, stream=True)).close()
        except openai.InternalServerError as error:
            return error.code
        return None

    await until_read(code, lambda code: code is None)
    await worker.redis.delete(worker.keys.worker("new"))

    await until_read(code, lambda code: code == "queue_mismatch", 4)


async def test_a_stream_ends_where_the_queues_model_is_replaced(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    worker.model_digest = "1" * 32
    asking = await asked(client.chat.completions.create(**CHAT, stream=True))
    job = await worker.take()
    await job.say("half of ")
    said = [chunk async for chunk in _some(await asking, 2)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in said) == "half of "
    await calls.run(worker.redis, serve_model(worker.keys, "2" * 32))
    again = await job.die("2" * 32)
    assert again.said == []
    with pytest.raises(openai.APIError, match="another model") as failed:
        async for _ in await asking:
            pass
    assert failed.value.code == "stream_rewound"
    await again.end(last="another answer")


async def _some(stream: AsyncIterator[Any], count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(stream)


async def test_a_checkpoint_is_known_while_no_worker_lives(door: Gateway, valkey: Server) -> None:
    async with door.client() as client, hand_worker(valkey.url) as worker:
        await calls.run(worker.redis, record_worker(QueueKeys("default"), TAKEN, model="org/model"))
        await until(lambda: is_served(client, "org/model"))
        waiting = await asked(
            client.chat.completions.create(**CHAT | {"model": "org/model"}, service_tier="flex")
        )
        await (await worker.take()).end(last="late")
        assert (await waiting).choices[0].message.content == "late"


async def test_models_by_queue_and_by_checkpoint(
    worker: HandWorker, valkey: Server, client: openai.AsyncOpenAI
) -> None:
    name = "org/model of/2026"
    await worker.redis.hset(worker.keys.worker("w"), "model", name)
    for model in ("default", name):
        await until(lambda model=model: is_served(client, model))
        asking = client.chat.completions.create(**CHAT | {"model": model})
        assert (await worker.answered(asking, last="x")).model == model
    await worker.redis.hset(worker.keys.worker("w"), "context_length", 2048)
    await worker.redis.set(QueueKeys("other").meta, "is no hash")  # and spoils nothing but its own queue

    async def told() -> bool:
        shown = [one.to_dict() async for one in client.models.list()]
        return [one["max_model_len"] for one in shown] == [2048, None]

    await until(told)
    with pytest.raises(openai.InternalServerError) as spoilt:
        await client.models.retrieve("other")
    assert "queue 'other' cannot be read" in str(spoilt.value)
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("nobody/has-it")
    assert api_error(caught.value)["code"] == "model_not_found"
