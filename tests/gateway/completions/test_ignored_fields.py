"""No field is taken without effect and without a sign: a header names it, and a series counts it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx2
import pytest
from support.gateway import HELLO, Gateway
from support.workers.hand_worker import HandWorker

from millstream import ErrorInfo, State

CHAT: dict[str, Any] = {"model": "default", "messages": HELLO}
HEADER = "x-millstream-ignored"


def counted(door: Gateway) -> dict[str, float]:
    found = re.findall(
        r'^millstream_gateway_ignored_fields_total{field="([^"]+)"} (\S+)',
        door.get("/metrics").decode(),
        re.MULTILINE,
    )
    return {name: float(number) for name, number in found}


async def test_a_header_names_what_had_no_effect(
    door: Gateway, worker: HandWorker, http: httpx2.AsyncClient
) -> None:
    before = counted(door)
    message = HELLO[0] | {"mood": "calm", "weight": 1}
    body = CHAT | {"messages": [message], "user": "u", "tempo": 3, "service_tier": "scale", "store": False}
    answer = await worker.answered(http.post("/chat/completions", json=body), last="x")
    assert answer.status_code == 200
    assert answer.headers[HEADER] == "user, tempo, messages.mood, messages.weight, service_tier"
    assert answer.json()["service_tier"] == "default"
    after = counted(door)  # of all tests of this gateway
    more = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert more == {"user": 1, "messages.weight": 1, "service_tier": 1, "other": 2}


async def test_streams_and_failures_have_the_header(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    options = {"include_usage": False, "include_obfuscation": True}
    body = CHAT | {"user": "u", "stream": True, "stream_options": options}
    answer = await worker.answered(http.post("/chat/completions", json=body), last="x")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers[HEADER] == "user, stream_options.include_obfuscation"
    asking = asyncio.ensure_future(http.post("/chat/completions", json=CHAT | {"user": "u"}))
    error = ErrorInfo(code="bad_request", message="too long", field="messages")
    await (await worker.take()).end(State.FAILED, error=error)
    assert ((await asking).status_code, (await asking).headers[HEADER]) == (400, "user")
    nowhere = await http.post("/chat/completions", json=CHAT | {"user": "u", "model": "no/model"})
    assert (nowhere.status_code, nowhere.headers[HEADER]) == (404, "user")


async def test_an_answer_to_known_fields_has_no_header(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    asking = http.post("/chat/completions", json=CHAT | {"user": None, "seed": 1})
    assert HEADER not in (await worker.answered(asking, last="x")).headers


@pytest.mark.parametrize(
    ("body", "param", "code", "words"),
    [
        ({"regex": "a"}, "regex", "unsupported_parameter", "use structured_outputs.regex"),
        ({"temprature": 1}, "temprature", "unknown_parameter", "did you mean temperature?"),
        (
            {"stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
            "unknown_parameter",
            "did you mean include_usage?",
        ),
        (
            {"stream": True, "return_token_ids": True},
            "return_token_ids",
            "unsupported_parameter",
            "leave stream out",
        ),
    ],
)
async def test_a_refusal_names_field_and_remedy(
    http: httpx2.AsyncClient, worker: HandWorker, body: dict[str, Any], param: str, code: str, words: str
) -> None:
    answer = await http.post("/chat/completions", json=CHAT | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert words in error["message"]
