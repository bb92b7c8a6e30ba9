"""Images in chats by HTTP: whole data: URLs to a worker that reads them, and clear refusals of all else."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from support.gateway import api_error
from support.wire.image_files import data_url, png
from support.workers.counting_worker import until, until_read
from support.workers.hand_worker import HandWorker

from millstream import ErrorInfo, State
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.wire.versions import TAKEN

READS_IMAGES = {"version_max": str(TAKEN.high), "images": "1"}


def chat(*images: bytes, **more: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(one), "detail": "high"}} for one in images]
    content = [*parts, {"type": "text", "text": "Read it."}]
    return {"model": "default", "messages": [{"role": "user", "content": content}], **more}


async def tells(worker: HandWorker, client: openai.AsyncOpenAI, *modalities: str, **facts: str) -> None:
    """The worker's heartbeat says so, and the gateway has seen it."""
    await worker.redis.hset(worker.keys.worker("w"), mapping=facts)

    async def seen() -> bool:
        told = (await client.models.retrieve("default")).to_dict()["input_modalities"]
        return told == list(modalities)

    await until(seen)


async def test_a_worker_gets_the_bytes(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    await tells(worker, client, "text", "image", **READS_IMAGES)
    for streamed in (False, True):
        options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        await until_code(client, None)
        asking: asyncio.Task[Any] = asyncio.ensure_future(
            client.chat.completions.create(**chat(png(1), png(2), png(1)), **options)
        )
        while len((job := await worker.take()).request.images) < 2:
            pass  # it is gone with its client
        assert [image.data for image in job.request.images] == [png(1), png(2)]
        assert job.request.messages is not None
        assert [part.image for part in job.request.messages[0].parts] == [0, 1, 0, None]
        await job.end(last="A page.", image_tokens=64)
        answer = await asking
        told = [chunk async for chunk in answer][-1].usage if streamed else answer.usage
        assert told.prompt_tokens_details.to_dict()["image_tokens"] == 64


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_names_the_part_that_was_sent(
    worker: HandWorker, client: openai.AsyncOpenAI, streamed: bool
) -> None:
    """A worker names the part of the request that it got: texts beside each other are one there."""
    await tells(worker, client, "text", "image", **READS_IMAGES)
    asked = chat(png(1), stream=streamed)
    asked["messages"][0]["content"][:0] = [{"type": "text", "text": text} for text in "ab"]
    asking: asyncio.Task[Any] = asyncio.ensure_future(client.chat.completions.create(**asked))
    job = await worker.take()
    message = "messages[0].parts[1]: cannot be read (got 9 bytes)"
    await job.end(State.FAILED, error=ErrorInfo(code="bad_request", message=message, field=message[:20]))
    with pytest.raises(openai.APIError) as caught:
        async for _ in await asking:
            pass
    assert caught.value.param == "messages[0].content[2]"
    assert "messages[0].content[2]: cannot be read (got 9 bytes)" in caught.value.message


async def test_text_has_no_image_tokens(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    asking = client.chat.completions.create(model="default", messages=[{"role": "user", "content": "a"}])
    answer = await worker.answered(asking, last="b")
    assert "image_tokens" not in answer.usage.prompt_tokens_details.to_dict()


async def test_a_model_that_reads_text_only(worker: HandWorker, client: openai.AsyncOpenAI) -> None:
    """Older workers are waited for: newer ones may come."""
    await until_code(client, "queue_mismatch")
    await worker.redis.hset(worker.keys.worker("w"), "version_max", str(TAKEN.high))
    told = api_error(await until_code(client, "images_not_supported"))
    assert told["param"] == "messages"
    problem = (
        "messages: this queue's model, m, reads text only; send the page's text, or a queue with a vision"
    )
    assert told["message"].startswith(problem)


async def until_code(client: openai.AsyncOpenAI, code: str | None) -> Any:
    """The error with this code; None: it is taken, without an answer. The gateway looks once a second."""

    found: list[openai.APIStatusError] = []

    async def told() -> str | None:
        try:
            await (await client.chat.completions.create(**chat(png()), stream=True)).close()
        except openai.APIStatusError as error:
            found.append(error)
            return error.code
        return None

    await until_read(told, lambda one: one == code)
    return found[-1] if code else None


async def test_what_a_gateway_does_not_take(client: openai.AsyncOpenAI) -> None:
    for url, problem in (
        (
            "https://example.com/a.png",
            "images are not fetched from URLs; send the image itself as a data:",
        ),
        ("/etc/passwd", "local files are read by `batch run --media DIR` and the Python client only"),
        (data_url(b"%PDF-1.7"), "is no whole PNG, JPEG, WebP, GIF, BMP or TIFF image"),
    ):
        asked = chat()
        asked["messages"][0]["content"].append({"type": "image_url", "image_url": {"url": url}})
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**asked)
        told = api_error(caught.value)
        assert told["param"] == "messages[0].content[1].image_url.url"
        assert problem in told["message"]
    with pytest.raises(openai.APIStatusError) as large:
        await client.chat.completions.create(**chat(png() + bytes(100_000)))
    assert (large.value.status_code, api_error(large.value)["code"]) == (413, "body_too_large")
    assert "the body may have 100000 bytes" in api_error(large.value)["message"]


def test_a_body_holds_the_longest_request() -> None:
    assert GatewaySettings(redis_url="redis://localhost").max_body_bytes == 24 * 1024**2
