"""Each request is a line of the log, which says who asked, how it ended and what it made; nothing of what was
asked, nor of what proves who asks, stands in it."""

from __future__ import annotations

import asyncio
import io
import json
import re
from typing import Any

import httpx2
import openai
import pytest
from support.batches import chat, upload
from support.gateway import Gateway, add_key, gateway_within
from support.servers.servers import Server
from support.workers.counting_worker import until
from support.workers.hand_worker import HandWorker

from millstream import ErrorInfo, State
from millstream.gateway.http.access_line import AccessLine, log_access
from millstream.gateway.status.model_routes import ModelRoutes
from millstream.logs import log_setup
from millstream.openai.api_error import ApiError

SECRET = "s3cr3t-pr0mpt"
CHAT: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": SECRET}]}
SHAPE = ["timestamp", "level", "event", "method", "route", "status", "seconds", "request_id"]


def requests(door: Gateway) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, door.lines) if line["event"] == "request"]


async def newest(door: Gateway, request_id: str | None) -> dict[str, Any]:
    """The line of this request, which comes behind its answer."""
    assert request_id is not None
    await until(lambda: any(line["request_id"] == request_id for line in requests(door)))
    [line] = [line for line in requests(door) if line["request_id"] == request_id]
    assert list(line)[: len(SHAPE)] == SHAPE
    return line


@pytest.fixture
def key(valkey: Server) -> str:
    return add_key(valkey, "acme")


async def test_an_answer_is_a_line_with_tenant_and_job(door: Gateway, worker: HandWorker, key: str) -> None:
    async with door.client(key) as client:
        headers = {"Idempotency-Key": SECRET, "x-client-request-id": SECRET, "user-agent": SECRET}
        asking = asyncio.ensure_future(client.chat.completions.create(**CHAT, extra_headers=headers))
        job = await worker.take()
        await job.end(last=SECRET)
        line = await newest(door, (await asking)._request_id)
        assert (line["level"], line["method"], line["route"]) == ("info", "POST", "/v1/chat/completions")
        assert (line["status"], line["tenant"], line["queue"]) == (200, "acme", "default")
        assert line["job_id"] == job.id
        assert 0 < line["seconds"] < 30
        batch = await client.batches.create(
            input_file_id=await upload(client, [chat(1, SECRET, 3)]),
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        line = await newest(door, batch._request_id)
        assert (line["route"], line["batch_id"]) == ("/v1/batches", batch.id)
        file = await client.files.retrieve(batch.input_file_id)
        line = await newest(door, file._request_id)
        assert (line["route"], line["file_id"]) == ("/v1/files/{id}", file.id)


async def test_a_refusal_is_a_line_with_its_code(door: Gateway, worker: HandWorker, key: str) -> None:
    wrong = {"temperature": SECRET}
    async with door.client(key) as client, door.client(f"ms-{SECRET}") as stranger:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**CHAT, extra_body=wrong)
        line = await newest(door, refused.value.request_id)
        assert (line["level"], line["status"], line["error"]) == ("info", 400, "invalid_value")
        assert line["tenant"] == "acme"
        with pytest.raises(openai.AuthenticationError) as unknown:
            await stranger.chat.completions.create(**CHAT)
        line = await newest(door, unknown.value.request_id)
        assert (line["level"], line["status"], line["error"]) == ("info", 401, "invalid_api_key")
        assert "tenant" not in line
        for route in (f"/{SECRET}", f"/batches/batch_{SECRET}", f"/files/file-{SECRET}"):
            with pytest.raises(openai.NotFoundError) as absent:
                await client.get(route, cast_to=object)
            assert (await newest(door, absent.value.request_id))["status"] == 404
        asking = asyncio.ensure_future(client.chat.completions.create(**CHAT))
        await (await worker.take()).end(State.FAILED, error=ErrorInfo(code="broken", message=SECRET))
        with pytest.raises(openai.InternalServerError) as failed:
            await asking
        line = await newest(door, failed.value.request_id)
        assert (line["level"], line["status"], line["error"]) == ("warning", 500, "broken")
    log = "".join(door.lines)
    assert SECRET not in log
    assert key not in log


async def test_a_stream_that_fails_is_a_warning(
    door: Gateway, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    asking = asyncio.ensure_future(client.chat.completions.with_raw_response.create(**CHAT, stream=True))
    job = await worker.take()
    await job.say("one")
    answer = await asking
    await job.end(State.FAILED, error=ErrorInfo(code="broken", message=SECRET))
    with pytest.raises(openai.APIError):
        [chunk async for chunk in answer.parse()]
    line = await newest(door, answer.headers["x-request-id"])
    assert (line["level"], line["status"], line["error"]) == ("warning", 200, "broken")
    assert SECRET not in str(line)


async def test_a_fault_is_told_with_the_id_of_its_request(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: ModelRoutes, request: Any, caller: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(ModelRoutes, "list", fails)
    stream = io.StringIO()
    log_setup.configure("json", "info", stream)
    async with gateway_within(valkey.url) as (host, port):
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"http://{host}:{port}/v1/models")
            assert answer.status_code == 500
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    own = [line for line in lines if line.get("request_id") == answer.headers["x-request-id"]]
    found = [(line["event"], line["level"]) for line in own]
    assert found == [("request failed", "error"), ("request", "warning")]
    [fault] = own[0]["exception"]
    assert fault["exc_type"] == "ValueError"
    assert fault["frames"][-1]["name"] == "fails"
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "told"),
    [("debug", ["/healthz", "/v1/models", "/v1/files"]), ("info", ["/v1/models", "/v1/files"]),
     ("warning", ["/v1/files"]), ("error", [])],
)  # fmt: skip
def test_the_level_decides_which_requests_are_lines(level: log_setup.LogLevel, told: list[str]) -> None:
    stream = io.StringIO()
    log_setup.configure("console", level, stream)
    failed = AccessLine()
    failed.note(ApiError(503, "message", "overloaded"))
    log_access(AccessLine(), "GET", "/healthz", 503)
    log_access(AccessLine(), "GET", "/v1/models", 404)
    log_access(failed, "GET", "/v1/files", 503)
    assert re.findall(r"route=(\S+)", stream.getvalue()) == told
