"""POSTs of several prompts: a job each, one answer, one error, one key, and none that goes on for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest
from support.gateway import Gateway, is_served
from support.servers.servers import Server
from support.workers.counting_worker import counted, model_name, serving, until, write_tokenizer
from support.workers.hand_worker import HandJob, HandWorker

from millstream import ErrorInfo, QueueFull, State, Unavailable
from millstream.client.submit.requests import draft
from millstream.client.submit.submission import Submitted
from millstream.errors import MillstreamError
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.completions.completion_job import CompletionJob
from millstream.gateway.completions.completion_request import CompletionRequest
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.wire.messages.record import read_job

LIST: dict[str, Any] = {"model": "default", "prompt": ["xQ", "yQ"], "max_tokens": 60, "temperature": 0}


def ask(client: openai.AsyncOpenAI, key: str = "", **changes: Any) -> asyncio.Task[Any]:
    headers = {"Idempotency-Key": key} if key else {}
    return asyncio.ensure_future(client.completions.create(**LIST | changes, extra_headers=headers))


async def taken(worker: HandWorker, count: int) -> dict[Any, HandJob]:
    """So many jobs, by their prompts."""
    jobs = [await worker.take() for _ in range(count)]
    return {job.request.prompt or job.request.token_ids: job for job in jobs}


async def are_cancelled(worker: HandWorker, *jobs: HandJob) -> bool:
    records = [await read_job(worker.redis, worker.keys, job.id) for job in jobs]
    return all(one is not None and (one.cancelled or one.state is State.CANCELLED) for one in records)


async def test_a_real_worker_answers_a_list(
    door: Gateway, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("words"))
    asked: dict[str, Any] = {"model": "default", "prompt": ["w5", "w20"], "n": 2, "max_tokens": 3, "seed": 7}
    asked["extra_body"] = {"service_tier": "flex"}  # waits for a worker
    async with serving(valkey, model_name(tokenizer), lease_s=20.0, renew_s=2.0), door.client() as client:
        await until(lambda: is_served(client, "counting"))  # loading takes longer than the gateway waits
        whole = await client.completions.create(**asked)
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        texts = [choice.text.strip() for choice in whole.choices]
        assert texts == [counted(first, 3) for first in (6, 7, 21, 22)]
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 12)

        options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 0}
        chunks = [chunk async for chunk in await client.completions.create(**asked, **options)]
        assert len({chunk.id for chunk in chunks}) == 1
        assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
        for index, text in enumerate(texts):
            own = [one for chunk in chunks for one in chunk.choices if one.index == index]
            assert "".join(one.text for one in own).strip() == text
            assert [one.finish_reason for one in own if one.finish_reason] == ["length"]
            assert own[0].logprobs is not None
            assert (own[0].logprobs.text_offset or [None])[0] == 0


async def test_choices_stand_in_the_order_of_prompts(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    answer = ask(client, prompt=["xQ", [120, 81]])
    jobs = await taken(worker, 2)
    assert {job.id.rpartition("-")[2] for job in jobs.values()} == {"0", "1"}
    await jobs[120, 81].end(last="second")
    await jobs["xQ"].end(last="one")
    whole = await answer
    assert [(one.index, one.text) for one in whole.choices] == [(0, "one"), (1, "second")]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 9)
    assert whole.id == f"cmpl-{jobs['xQ'].id}"
    await until(lambda: are_gone(worker))


async def are_gone(worker: HandWorker) -> bool:
    return not await worker.redis.keys(worker.keys.job("*"))


async def test_a_list_of_one_prompt_is_the_job_of_a_text(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """Case 23, as LangChain and lm-eval send it."""
    for prompt in ("xQ", ["xQ"], [[120, 81]]):
        answer = ask(client, prompt=prompt)
        job = await worker.take()
        assert "-" not in job.id.partition("-")[2]
        assert job.request.prompt == "xQ" or job.request.token_ids == (120, 81)
        await job.end(last="one")
        assert [choice.text for choice in (await answer).choices] == ["one"]


@pytest.mark.parametrize(("key", "stream"), [("", False), ("list-1", False), ("list-3", True)])
async def test_the_error_of_a_prompt_ends_them_all(
    worker: HandWorker, key: str, stream: bool, client: openai.AsyncOpenAI
) -> None:
    too_long = ErrorInfo(code="bad_request", message="prompt: too long", field="prompt")
    answers = [ask(client, key, stream=stream)]
    jobs = await taken(worker, 2)
    await jobs["yQ"].end(State.FAILED, error=too_long)
    await until(lambda: are_cancelled(worker, jobs["xQ"]))
    await jobs["xQ"].end(State.CANCELLED)
    if key:  # a repeated POST has the same error, and not the cancellation
        answers.append(ask(client, key, stream=stream))
    for answer in answers:
        with pytest.raises(openai.BadRequestError, match=r"prompt\[1\]: too long") as caught:
            await answer
        assert caught.value.param == "prompt[1]"


async def test_the_error_of_a_prompt_ends_the_stream(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    body = json.dumps(LIST | {"stream": True})
    asking = asyncio.ensure_future(http.post("/v1/completions", content=body))
    jobs = await taken(worker, 2)
    await jobs["xQ"].say("Hel")
    await asyncio.sleep(0.1)  # so that it comes before the error
    await jobs["yQ"].end(State.FAILED, error=ErrorInfo(code="engine_lost", message="too many deaths"))
    events = [line[6:] for line in (await asking).text.splitlines() if line.startswith("data: ")]
    assert json.loads(events[0])["choices"][0]["text"] == "Hel"
    assert json.loads(events[-1])["error"]["code"] == "engine_lost"
    await until(lambda: are_cancelled(worker, jobs["xQ"]))


async def test_a_client_that_goes_ends_all_its_jobs(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        answer = ask(client, prompt=["a", "b", "c"], stream=stream)
        jobs = await taken(worker, 2)  # one waits in the queue
        answer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answer
        await until(lambda jobs=jobs: are_cancelled(worker, *jobs.values()))
        await until(lambda: nobody_waits(worker))
        for job in jobs.values():
            await job.end(State.CANCELLED)


async def nobody_waits(worker: HandWorker) -> bool:
    keys = await worker.redis.keys(worker.keys.job("*"))
    return b"queued" not in [await worker.redis.hget(key, "state") for key in keys]


async def test_a_key_finds_all_jobs_of_a_list(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    answers = [ask(client, "list-2"), ask(client, "list-2")]
    jobs = await taken(worker, 2)
    answers.pop().cancel()
    await jobs["yQ"].end(last="two")
    await jobs["xQ"].end(last="one")
    first = await answers[0]
    again = await ask(client, "list-2")
    assert [choice.text for choice in again.choices] == ["one", "two"]
    assert again.id == first.id
    assert await worker.redis.xlen(worker.keys.lane("interactive")) == 0


class SubmitFails:
    """A client whose queue has taken the first job of two, and refuses the second."""

    def __init__(self, refusal: MillstreamError) -> None:
        self.cancelled: list[str] = []
        self._refusal = refusal

    async def submit_many(self, _: Any) -> list[Any]:
        return [Submitted("0-a-0", State.QUEUED, created=True), self._refusal]

    async def cancel_many(self, ids: Any) -> None:
        self.cancelled += ids


@pytest.mark.parametrize(
    ("refusal", "once", "cancelled"),
    [
        (QueueFull("q", 9, 9, 1.0), "", ["0-a-0"]),
        (QueueFull("q", 9, 9, 1.0), "key", []),  # a POST with the key takes it over
        (Unavailable("away"), "", []),  # and so does a retry
    ],
)
async def test_a_list_that_is_refused_in_part(
    refusal: MillstreamError, once: str, cancelled: list[str]
) -> None:
    client = SubmitFails(refusal)
    settings = SimpleNamespace(disconnect_grace_s=0.0, timeout_s=1.0)
    entering = SimpleNamespace(enter=lambda _: asyncio.sleep(0))
    gateway: Any = SimpleNamespace(settings=settings, clients={"q": client}, idempotency=entering)
    job = CompletionJob(gateway, IdempotentRequest("", "d", "a", "q", joined=False, once=once))
    requests = tuple(draft({"prompt": text}, 0, 1000) for text in "xy")
    request = CompletionRequest(ApiEndpoint.COMPLETIONS, "q", requests, 1, False, False, False)
    with pytest.raises(type(refusal)):
        await job.submit(request)
    assert client.cancelled == cancelled
    assert job.is_queued is not bool(cancelled)
