"""Every error has OpenAI's shape and names what is wrong; nothing is read beyond its bound."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from support.gateway import HELLO, Gateway
from support.workers.hand_worker import HandWorker

from millstream.gateway.queues.queue_directory import FRESH_S
from millstream.version import version

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "default", "messages": HELLO}
SHAPE = {"message", "type", "param", "code"}


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    body: dict[str, Any] = answer.json()
    assert (set(body), set(body["error"])) == ({"error"}, SHAPE)
    assert body["error"]["message"]
    assert isinstance(body["error"]["code"], str)
    return body["error"]


ROUTES = [
    ("GET", "/v1/nothing", 404, "unknown_url"), ("GET", "/", 404, "unknown_url"),
    ("GET", "/v1/", 404, "unknown_url"), ("GET", "/v1/models//", 404, "model_not_found"),
    ("GET", f"{CHAT}/", 405, "method_not_allowed"),
    ("GET", "/v1/models/no%2Fmodel", 404, "model_not_found"), ("GET", CHAT, 405, "method_not_allowed"),
    ("DELETE", "/completions", 405, "method_not_allowed"), ("POST", "/metrics", 405, "method_not_allowed"),
    ("POST", "/health", 405, "method_not_allowed"), ("PUT", "/v1/files", 405, "method_not_allowed"),
    ("POST", "/v1/files/file-1", 405, "method_not_allowed"), ("GET", "/v1/files/file-1", 404, "not_found"),
    ("DELETE", "/files/..%2F..", 404, "unknown_url"), ("GET", "/v1/batches/batch_1", 404, "not_found"),
    ("DELETE", "/v1/batches", 405, "method_not_allowed"), ("POST", "/v1/responses", 501, "not_implemented"),
    ("POST", "/embeddings", 501, "not_implemented"),
    ("GET", "/v1/webhook_endpoints", 501, "not_implemented"),
    ("POST", "/v1/decisions", 501, "not_implemented"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status", "code"), ROUTES)
async def test_routes_that_are_not_there(
    method: str, path: str, status: int, code: str, http: httpx2.AsyncClient
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    if status == 405:
        assert answer.headers["allow"]
    if status == 501:
        assert answer.headers["x-should-retry"] == "false"


BODIES = [
    (b"", "is not JSON"),
    (b"{", "is not JSON"),
    (b"\xff{}", "is not JSON"),
    (b'{"a": NaN}', "NaN is no JSON number"),
    (b'{"model": "\\ud800"}', "surrogates"),
    (b"[" * 100_000, "is not JSON"),
    (b"[]", "must be a JSON object"),
    (b"7", "must be a JSON object"),
    (b"\xef\xbb\xbf7", "must be a JSON object"),  # behind a byte order mark
    (b"\xef\xbb\xbf\xef\xbb\xbf{}", "is not JSON"),
]


@pytest.mark.parametrize(("body", "problem"), BODIES)
async def test_bodies_that_are_no_objects(body: bytes, problem: str, http: httpx2.AsyncClient) -> None:
    answer = await http.post(CHAT, content=body)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (400, "invalid_json")
    assert problem in error["message"]


def request(headers: str, body: bytes = b"") -> bytes:
    return f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() + body


def test_a_body_over_its_bound_is_refused_before_it_is_read(door: Gateway) -> None:
    for headers, body in (
        ("Content-Length: 100001\r\n", b""),
        ("Content-Length: 99999999999999999999999999\r\n", b""),
        (
            "Transfer-Encoding: chunked\r\n",
            b"1000\r\n" + b"x" * 4096 + b"\r\n" + b"18000\r\n" + b"x" * 98_304,
        ),
    ):
        got = door.raw(request(headers, body))
        head, _, rest = got.partition(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 400 "))
        if head.startswith(b"HTTP/1.1 413 "):
            assert json.loads(rest)["error"]["code"] == "body_too_large"


async def test_a_foreign_server_error_says_nothing_of_the_server(
    worker: HandWorker, http: httpx2.AsyncClient
) -> None:
    """A metadata key of another type: what the client gets has no address and no key in it."""
    await worker.redis.delete("{ms:other}:meta")
    await worker.redis.set("{ms:other}:meta", "not a hash")
    await asyncio.sleep(FRESH_S)
    answer = await http.post(CHAT, json=BODY | {"model": "other"})
    assert answer.status_code == 500
    assert "127.0.0.1" not in answer.text
    assert "{ms:" not in answer.text
    error_of(answer)


async def test_operators_pages(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    probes = ("/healthz", "/readyz", "/health", "/ping")
    assert [(await http.get(path)).text for path in probes] == ["ok\n"] * len(probes)
    assert (await http.get("/version")).json() == {"version": version()}
    page = await http.get("/backlog")
    await http.get("/nothing")
    metrics = (await http.get("/metrics")).text
    queue = page.json()["queues"]["default"]
    assert (page.json()["waiting"], queue["waiting"], queue["workers"]) == (0, 0, 1)
    assert set(queue["lanes"]) == {"interactive", "batch"}
    assert 'millstream_gateway_requests_total{route="/backlog",status="200"}' in metrics
    assert 'millstream_gateway_requests_total{route="other",status="404"}' in metrics
