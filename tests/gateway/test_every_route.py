"""Each route of the application, with each of its parameters wrong, without a key, and with the id of another
tenant's object. A new route, and a new field of a request, need a line here."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from prometheus_client import CollectorRegistry
from support.batches import CHAT, chat, upload
from support.forms import ANCHOR, FILE, PURPOSE, Part, form
from support.forms import field as part
from support.gateway import HELLO, Gateway, add_key
from support.pages import ROOT
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker

from millstream.gateway.batches.routes.batch_request import LONGEST_NAME, LONGEST_VALUE, MOST_METADATA
from millstream.gateway.context import GatewayContext
from millstream.gateway.gateway_app import ABSENT, routes
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.redis.tenant_keys import API_KEYS
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.fields.field_table import OF_GATEWAY, Treatment, names_of
from millstream.wire.keys import Lane

OWN_FILE, OWN_NOTES = "own file", "own notes"  # stand for ids: of a file for batches, and of another one
OPEN = {  # without a key
    "GET /healthz", "GET /readyz", "GET /health", "GET /ping", "GET /version", "GET /metrics"
}  # fmt: skip
PARAMS = {"Last-Event-ID": "after"}  # of headers that say what a parameter can
NO_ID = f"{0:032x}"
LONG = "x" * 1000
DEEP: dict[str, Any] = {"a": {}}
for _ in range(100):
    DEEP = {"a": DEEP}
NESTED = json.loads('{"a":' * 300 + "1" + "}" * 300)  # pydantic writes no such one
HUGE = {"type": "number", "multipleOf": 10**400}  # no float
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 600 + "]" * 600}}


@dataclass(frozen=True)
class Told:
    """A value that is not answered with 400."""

    status: int
    value: Any


Values = Mapping[str, list[Any]]  # wrong ones by `param`; of a body None: it is missing


@dataclass(frozen=True)
class Line:
    """`right`: a body; `ids`: of nothing that is there; `forms`: with the field that is wrong in each."""

    right: Mapping[str, Any] = field(default_factory=dict)
    body: Values = field(default_factory=dict)
    query: Values = field(default_factory=dict)
    headers: Values = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)
    forms: list[tuple[str, tuple[Part, ...]]] = field(default_factory=list)

    def wrong(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """`param`, its value, and the request's arguments."""
        for name, value in _each(self.body):
            yield name, value, {"json": {**self.right, name.partition(".")[0]: _plain(value)}}
        for name, value in _each(self.query):
            yield name, value, {"params": {name: _plain(value)}}
        for name, value in _each(self.headers):
            sent = {"json": self.right} if self.right else {}
            yield PARAMS.get(name, name), value, sent | {"headers": {name: _plain(value)}}
        for name, parts in self.forms:
            yield name, None, form(*parts)


def _each(values: Values) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, wrong in values.items() for value in wrong)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Told) else value


GENERATION: Values = {
    "model": [7, "", [], Told(404, "no/model"), Told(404, LONG)],
    "stream": ["yes", 1], "service_tier": ["", [], 7],
    "stream_options": [7, {"include_usage": True}],
    "temprature": [1],
    "temperature": [-3, 11, "x", []], "top_p": [-1, 2, "x"], "top_k": [-2, 1.5, "x", 2**31],
    "min_p": [-1, 2, "x"], "seed": ["x", 1.5, 2**63], "n": [0, 129, "x", 1.5], "ignore_eos": [1, "yes"],
    "max_tokens": [-1, 0, 1.5, "x", 2**25], "min_tokens": [-1, 1.5, "x", 2**25],
    "stop": [7, {}, [7], [""], ["x" * 1025], ["x"] * 65], "stop_token_ids": ["x", 7, [-1], ["x"], [1] * 257],
    "presence_penalty": [9, "none"], "frequency_penalty": [-9, "none"], "repetition_penalty": [0, 11, "x"],
    "logit_bias": [[], 7, {"x": 1}, {"1": 101}, {"1": "x"}, {str(token): 1 for token in range(1025)}],
    "metadata": [[], {"a": 1}, {"a": LONG * 70}], "chat_template_kwargs": [7, [], NESTED],
    "prediction": [7, {"type": "image", "content": "x"}, {"type": "content"}],
    "cache": [7, {"ttl": 1}, {"no-cache": 1}],
    "response_format": [7, {"type": "xml"},
                        {"type": "json_schema", "json_schema": {"name": "x", "schema": 7}},
                        {"type": "json_schema", "json_schema": {"name": "x", "schema": HUGE}}],
    "structured_outputs": [7, {"x": 1}, {"choice": []}, {"regex": 7}, {"json": HUGE}],
    "guided_json": [7, DEEP], "guided_regex": [7, LONG * 70], "guided_choice": ["x", [], [7]],
    "guided_grammar": [7, []], "guided_whitespace_pattern": [7, " "],
    "functions": [[{"name": "f"}]], "function_call": [{"name": "f"}], "audio": [{"voice": "x"}],
    "modalities": [["audio"]], "web_search_options": [{}], "best_of": [2], "echo": [True], "suffix": ["x"],
    "bad_words": ["x", 7, [""], ["x" * 257], ["x"] * 257], "allowed_token_ids": ["x", [], [-1], [2**31]],
    "include_stop_str_in_output": [1, "yes"], "skip_special_tokens": [0, "no"],
    "return_token_ids": [1, "yes"], "truncate_prompt_tokens": [-1, 0, "x", 1.5, 2**25],
    "thinking_token_budget": [-2, "x", 1.5],
    "grammar": ["x"], "prompt_logprobs": [1], "use_beam_search": [True], "enable_thinking": [False],
}  # fmt: skip
ONLY_CHAT: Values = {
    "messages": [
        None, [], "hello", 7, [7], [{}], [{"role": "user", "name": 7}], [{"role": LONG, "content": "x"}],
        [{"role": "user", "content": 7}], [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "tool", "content": "x", "tool_call_id": LONG}],
        [{"role": "assistant", "tool_calls": [CALL]}],
    ],
    "max_completion_tokens": [-1, 1.5, "x"], "logprobs": [7, "x"], "top_logprobs": [-1, 99, "x", 3],
    "tools": [7, [7], [{"type": "browser"}], [{"type": "function"}],
              [{"type": "function", "function": {"name": "f", "parameters": HUGE}}]],
    "tool_choice": ["always", 7, "required"], "parallel_tool_calls": [7, "x"],
    "continue_final_message": [1, "yes"], "add_generation_prompt": [0, "no"], "reasoning_effort": ["much", 7],
    "prompt": ["x"],
}  # fmt: skip
ONLY_COMPLETIONS: Values = {
    "prompt": [None, "", [], 7, ["a", ""], [[1], []], ["a"] * 257, [-1], [2**31], [1.5]],
    "logprobs": [-1, 99, "x", True],
    "tools": [[{}]], "tool_choice": ["required"], "parallel_tool_calls": [7],
    "continue_final_message": [True], "reasoning_effort": ["high"], "max_completion_tokens": [5],
    "messages": [HELLO],
}  # fmt: skip
ONCE: Values = {"Idempotency-Key": ["", "x" * 256], "Content-Encoding": [Told(415, "br"), "gzip"]}
PAGE: Values = {
    "limit": ["0", "10001", "x", "²", "-1", "1.5", "9" * 30], "after": ["x", LONG, f"file-{NO_ID}"],
}  # fmt: skip
BATCH: Values = {
    "input_file_id": [None, 7, "", OWN_NOTES, Told(404, "x"), Told(404, LONG), Told(404, f"file-{NO_ID}")],
    "endpoint": [None, 7, "/v1/embeddings", LONG],
    "completion_window": [None, 24, "24", "0h", "31d", "1w", LONG],
    "metadata": [[], {"a": 1}, {f"n{place}": "" for place in range(MOST_METADATA + 1)},
                 {"n" * (LONGEST_NAME + 1): ""}],
    "metadata.a": [{"a": "x" * (LONGEST_VALUE + 1)}],
    "output_expires_after": [7, []], "output_expires_after.anchor": [{"seconds": 3600}, {"anchor": "now"}],
    "output_expires_after.seconds": [
        {"anchor": "created_at"} | more
        for more in ({}, {"seconds": 60}, {"seconds": "3600"}, {"seconds": 2**40}, {"seconds": 3600.5})
    ],
}  # fmt: skip
SECONDS = "expires_after[seconds]"
FORMS: list[tuple[str, tuple[Part, ...]]] = [
    ("purpose", (FILE,)), ("purpose", (part("purpose", "batch_output"), FILE)),
    ("purpose", (FILE, part("purpose", ""))), ("purpose", (FILE, part("purpose", "x" * 2000))),
    ("file", (PURPOSE,)), ("file", (PURPOSE, FILE, FILE)),
    ("file", (PURPOSE, ('form-data; name="file"; filename="' + "x" * 300 + '"', b""))),
    ("expires_after.anchor", (PURPOSE, FILE, part(SECONDS, "3600"))),
    ("expires_after.anchor", (PURPOSE, FILE, part("expires_after[anchor]", "now"))),
    ("expires_after.seconds", (PURPOSE, FILE, ANCHOR)),
    *(
        ("expires_after.seconds", (ANCHOR, part(SECONDS, value), FILE, PURPOSE))
        for value in ("3599", "2592001", "-1", "1e4", "", "9" * 30)
    ),
]  # fmt: skip
FILE_IDS = ["x", "file-x", f"file-{NO_ID}", f"FILE-{NO_ID}", "file-" + LONG, "%00"]
BATCH_IDS = ["x", "batch_0", f"BATCH_{NO_ID}", "batch_" + LONG, "%00"]
AFTER = ["x", "-1", "1.5", "9" * 30]

TABLE: dict[str, Line] = {
    **dict.fromkeys(OPEN, Line()), "GET /backlog": Line(),
    "POST /v1/chat/completions": Line(
        {"model": "default", "messages": HELLO}, GENERATION | ONLY_CHAT, headers=ONCE
    ),
    "POST /v1/completions": Line(
        {"model": "default", "prompt": "x"}, GENERATION | ONLY_COMPLETIONS, headers=ONCE
    ),
    "GET /v1/models": Line(),
    "GET /v1/models/{id}": Line(ids=["no/model", LONG, "%00"]),
    "GET /v1/files": Line(query=PAGE | {"order": ["up", "DESC"], "purpose": ["x", LONG]}),
    "POST /v1/files": Line(forms=FORMS),
    "GET /v1/files/{id}": Line(ids=FILE_IDS),
    "DELETE /v1/files/{id}": Line(ids=FILE_IDS),
    "GET /v1/files/{id}/content": Line(
        ids=FILE_IDS, headers={"Range": [Told(416, "bytes=9999-"), Told(416, "bytes=-0")]}
    ),
    "GET /v1/batches": Line(query=PAGE | {"limit": [*PAGE["limit"], "101"], "order": ["up"]}),
    "POST /v1/batches": Line(
        {"input_file_id": OWN_FILE, "endpoint": CHAT, "completion_window": "24h"}, BATCH, headers=ONCE
    ),
    "GET /v1/batches/{id}": Line(ids=BATCH_IDS),
    "POST /v1/batches/{id}/cancel": Line(ids=BATCH_IDS),
    "GET /v1/batches/{id}/results": Line(
        ids=BATCH_IDS, query={"after": AFTER}, headers={"Last-Event-ID": AFTER}
    ),
}  # fmt: skip


def known_routes(folder: Path) -> set[str]:
    """Those of the application that are there, with `/v1`."""
    settings = GatewaySettings(redis_url="redis://localhost", files_url=str(folder))
    registry = CollectorRegistry()
    made = routes(GatewayContext(settings, GatewayMetrics(registry)), registry)
    paths = {route.path for route in made}
    kept = [
        route
        for route in made
        if f"/v1{route.path}" not in paths and route.path.removeprefix("/v1").split("/")[1] not in ABSENT
    ]
    return {
        f"{method} {route.path.replace(':path', '')}"
        for route in kept
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_each_route_and_each_field_has_a_line(tmp_path: Path) -> None:
    assert set(TABLE) == known_routes(tmp_path)
    assert {name for name, line in TABLE.items() if line.ids} == {name for name in TABLE if "{id}" in name}
    for endpoint in ApiEndpoint:
        told = {name.partition(".")[0] for name in TABLE[f"POST {endpoint}"].body}
        assert told >= names_of(Treatment.DONE, endpoint) | {*OF_GATEWAY}


def test_each_route_stands_on_the_page(tmp_path: Path) -> None:
    page = (ROOT / "ops" / "pages" / "gateway.md").read_text("utf-8")
    table = page.partition("| Route ")[2].partition("|---|")[2].partition("\n\n")[0]
    told = set(re.findall(r"`(?:[A-Z]+ )?(/[^`?]*)", table))
    assert told == {route.partition(" ")[2] for route in known_routes(tmp_path)}


@pytest.fixture
async def own(door: Gateway, worker: HandWorker) -> dict[str, str]:
    """What stands for the caller's ids: in the table, and in paths."""
    async with door.client() as client:
        file = await upload(client, [chat(1, "w1", 2)])
        notes = (await client.files.create(file=b"{}", purpose="user_data")).id
        batch = await client.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
    return {
        OWN_FILE: file,
        OWN_NOTES: notes,
        "/files/{id}": f"/files/{file}",
        "/batches/{id}": f"/batches/{batch.id}",
    }


def filled(text: str, ids: Mapping[str, str]) -> str:
    for name, id in ids.items():
        text = text.replace(name, id)
    return text


async def test_each_wrong_value_is_named(
    worker: HandWorker, own: dict[str, str], http: httpx2.AsyncClient
) -> None:

    async def check(route: str, param: str, value: Any, arguments: dict[str, Any]) -> None:
        if "json" in arguments:
            body = filled(json.dumps(arguments.pop("json")), own)
            arguments = {"content": body} | arguments
        method, _, path = route.partition(" ")
        answer = await http.request(method, filled(path, own), **arguments)
        where = f"{route}: {param}={value!r:.80} {answer.status_code} {answer.text:.300}"
        error = answer.json()["error"]
        assert answer.status_code == (value.status if isinstance(value, Told) else 400), where
        assert set(error) == {"message", "type", "param", "code"}, where
        assert error["type"] == "invalid_request_error", where
        assert re.fullmatch(re.escape(param) + r"([.\[].*)?", error["param"]), where
        assert re.match(rf"{re.escape(error['param'])[:200]}: .", error["message"]), where
        assert error["code"], where

    for route, line in TABLE.items():
        for param, value, arguments in line.wrong():
            await check(route, param, value, arguments)
        for id in line.ids:
            param = "model" if "/models/" in route else "id"
            await check(route.replace("{id}", id), param, Told(404, id), {})
    assert len((await http.get("/v1/batches")).json()["data"]) == 1
    assert await worker.redis.xlen(worker.keys.lane(Lane.INTERACTIVE)) == 0


async def test_no_route_without_a_key_or_with_ids_of_others(
    worker: HandWorker,
    own: dict[str, str],
    valkey: Server,
    client: openai.AsyncOpenAI,
    http: httpx2.AsyncClient,
) -> None:
    """The objects of `own` are the empty tenant's, and the key of queue default may not see the other one."""
    key = await asyncio.to_thread(add_key, valkey, "bolt", "--queue", "default")
    bolt = {"authorization": f"Bearer {key}"}
    for route, line in TABLE.items():
        method, _, path = route.partition(" ")
        path = filled(path, own).replace("{id}", "other")
        assert (await http.request(method, path)).status_code == (200 if route in OPEN else 401), route
        asked = line.right | ({"model": "other"} if "model" in line.body else {})
        if "{id}" in route or asked:
            content = filled(json.dumps(asked), own)
            answer = await http.request(method, path, content=content, headers=bolt)
            assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error"), (
                route
            )
        if "after" in line.query and "{id}" not in route:
            after = {"after": own[f"{path.removeprefix('/v1')}/{{id}}"].rpartition("/")[2]}
            page = await http.get(path, headers=bolt)
            found = (page.json()["data"], (await http.get(path, params=after, headers=bolt)).status_code)
            assert found == ([], 400)
    await worker.redis.delete(API_KEYS)  # as if there had never been one
    for id in (own[OWN_FILE], own[OWN_NOTES]):
        assert (await client.files.content(id)).content
    [batch] = (await client.batches.list()).data
    assert batch.status in ("validating", "in_progress")
