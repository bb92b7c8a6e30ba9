"""An open door is a decision of the operator's, and no state of the server: who comes in without a key, and
that it stays shut once there was one."""

from __future__ import annotations

import asyncio
import json

import httpx2
import pytest
from support.commands import invoke
from support.gateway import HELLO, Gateway, add_key, gateway
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker

PAGE, LISTED = "https://evil.example", "https://app.example"


def asked(door: Gateway, host: str, *headers: str) -> bytes:
    """The answer to GET /v1/models."""
    lines = ["GET /v1/models HTTP/1.1", f"Host: {host}", "Connection: close", *headers, "", ""]
    return door.raw("\r\n".join(lines).encode())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem_of(answer: bytes) -> str:
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "no_api_keys"
    return str(error["message"])


def revoke(server: Server, key: str) -> None:
    assert invoke("keys", "revoke", key, "--redis-url", server.url).exit_code == 0


def test_without_keys_it_starts_only_when_told_to(valkey: Server) -> None:
    refused = invoke("gateway", "--redis-url", valkey.url, "--port", 0)
    assert (refused.exit_code, "--open: without it" in refused.stderr) == (2, True), refused.stderr
    assert "`millstream keys add`" in refused.stderr
    beyond = invoke("gateway", "--redis-url", valkey.url, "--host", "0.0.0.0", "--port", 0)
    assert (beyond.exit_code, "--host: needs API keys" in beyond.stderr) == (2, True), beyond.stderr
    assert "millstream keys add" in beyond.stderr
    key = add_key(valkey, "acme")
    for host in ("127.0.0.1", "0.0.0.0"):
        with gateway(valkey.url, "--host", host, keyless=False) as made:
            assert status_of(made.get("/v1/models")) == 401
            assert status_of(asked(made, "localhost", f"Authorization: Bearer {key}")) == 200
            revoke(valkey, key)
            assert status_of(made.get("/v1/models")) == 401
        key = add_key(valkey, "acme")


async def test_no_revoked_key_opens_the_door(door: Gateway, worker: HandWorker, valkey: Server) -> None:
    assert status_of(door.get("/v1/models")) == 200
    keys = [await asyncio.to_thread(add_key, valkey, "acme") for _ in range(2)]
    for key in keys:
        await asyncio.to_thread(revoke, valkey, key)
    for headers in ((), (f"Authorization: Bearer {keys[0]}",), ("Authorization: Bearer made",)):
        assert status_of(asked(door, "localhost", *headers)) == 401
    url = ("--redis-url", valkey.url)
    assert "no keys" in (await asyncio.to_thread(invoke, "keys", "list", *url)).stderr
    assert (await asyncio.to_thread(invoke, "keys", "revoke", "made", *url)).exit_code == 4
    with gateway(valkey.url, keyless=False) as other:
        assert status_of(other.get("/v1/models")) == 401


def test_an_open_gateway_is_called_by_a_name_of_loopback(door: Gateway) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.2:65535", "[::1]", "[::1]:80"):
        assert status_of(asked(door, host)) == 200, host
    for host in (
        "evil.example", "localhost.evil", "localhost.", "evil.example:", "localhost:", "localhost:x",
        "127.0.0.1:65536", "evil@127.0.0.1", "127.0.0.1@evil.example", "127.0.0.1#x", "127.0.0.1/x",
        "127.0.0.1 x", "127.1", "2130706433", "0.0.0.0", "0x7f.0.0.1", "::1", "[::1", "[::1]x", "[127.0.0.1]",
        "[localhost]", "a:b:c", "", "löcalhost", "127.0.0.1:８０", "localhost, localhost",
    ):  # fmt: skip
        answer = asked(door, host)
        assert status_of(answer) == 403, host
        assert "called as localhost, not as" in problem_of(answer)
    assert status_of(door.raw(b"GET /v1/models HTTP/1.0\r\n\r\n")) == 403
    assert status_of(door.raw(b"GET /healthz HTTP/1.0\r\n\r\n")) == 200


FORWARDED = (
    "Forwarded: for=203.0.113.9", "Via: 1.1 proxy", "X-Real-IP: 203.0.113.9", "X-Forwarded-For: 203.0.113.9",
    "x-forwarded-proto: https", "X-FORWARDED-HOST: evil.example", "X-Forwarded-Anything:",
)  # fmt: skip


@pytest.mark.parametrize("header", FORWARDED)
def test_an_open_gateway_takes_nothing_from_proxies(door: Gateway, header: str) -> None:
    answer = asked(door, f"127.0.0.1:{door.port}", header)
    assert status_of(answer) == 403
    problem = problem_of(answer)
    assert repr(header.partition(":")[0].lower()) in problem
    assert "make a key with `millstream keys add`" in problem


def test_an_open_gateway_takes_nothing_from_web_pages(door: Gateway) -> None:
    own = f"127.0.0.1:{door.port}"
    for headers in (
        (f"Origin: {PAGE}",), ("Origin: null",), ("Origin:",), (f"Origin: https://{own}",),
        ("Origin: http://127.0.0.1:1",), ("Origin: http://localhost",), (f"Origin: http://{own}/",),
        (f"Origin: http://{own}", f"Origin: {PAGE}"),
        ("Sec-Fetch-Site: cross-site",), ("Sec-Fetch-Site: same-site",),
        (f"Origin: http://{own}", "Sec-Fetch-Site: cross-site"),
    ):  # fmt: skip
        answer = asked(door, own, *headers)
        assert status_of(answer) == 403, headers
        assert "give --allow-origin, or make a key" in problem_of(answer)
    for headers in ((f"Origin: http://{own}", "Sec-Fetch-Site: same-origin"), ("Sec-Fetch-Site: none",)):
        assert status_of(asked(door, own, *headers)) == 200, headers


async def test_a_page_queues_and_stores_nothing(worker: HandWorker, http: httpx2.AsyncClient) -> None:
    """What a browser sends without asking first: it hides the answer only."""
    before = await worker.redis.dbsize()
    page = {"origin": PAGE, "sec-fetch-site": "cross-site", "content-type": "text/plain"}
    bodies = {
        "/v1/chat/completions": {"model": "default", "messages": HELLO, "service_tier": "flex"},
        "/v1/files": {},
        "/v1/batches": {"input_file_id": f"file-{0:032x}"},
    }
    for path, body in bodies.items():
        assert (await http.post(path, content=json.dumps(body), headers=page)).status_code == 403
    assert await worker.redis.xlen(worker.keys.lane("batch")) == 0
    assert await worker.redis.dbsize() == before


def allowed(answer: httpx2.Response) -> str | None:
    """The origin whose pages may read it."""
    return answer.headers.get("access-control-allow-origin")


@pytest.mark.parametrize("with_key", [False, True])
async def test_listed_pages_may_call_and_read_answers(valkey: Server, with_key: bool) -> None:
    key = await asyncio.to_thread(add_key, valkey, "acme") if with_key else "none"
    bearer = {"authorization": f"Bearer {key}"}
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-a"}
    listed = (LISTED, "http://localhost:5173")
    options = [word for origin in listed for word in ("--allow-origin", origin)]
    with gateway(valkey.url, *options) as door:
        async with httpx2.AsyncClient(base_url=door.url) as http:
            for origin in listed:
                first = await http.options("/v1/chat/completions", headers=asks | {"origin": origin})
                assert (first.status_code, allowed(first)) == (200, origin)
                assert "POST" in first.headers["access-control-allow-methods"]
                assert first.headers["access-control-allow-headers"] == "authorization,x-a"
                page = {"origin": origin, "sec-fetch-site": "cross-site"}
                answer = await http.get("/v1/models", headers=page | bearer)
                assert (answer.status_code, allowed(answer)) == (200, origin)
                told = answer.headers["access-control-expose-headers"].split(", ")
                own = {"x-request-id", "x-millstream-ignored", "x-millstream-schema"}
                assert own | {"x-ratelimit-remaining-tokens"} <= set(told)
                assert "Origin" in answer.headers["vary"]
                wrong = await http.post("/v1/chat/completions", headers=page)
                assert (wrong.status_code, allowed(wrong)) == (401 if with_key else 400, origin)
            refused = await http.options("/v1/chat/completions", headers=asks | {"origin": PAGE})
            foreign = await http.get("/v1/models", headers={"origin": PAGE} | bearer)
            assert (allowed(refused), allowed(foreign)) == (None, None)
            assert foreign.status_code == (200 if with_key else 403)  # the browser keeps it from the page


async def test_without_the_option_no_header_is_for_pages(http: httpx2.AsyncClient) -> None:
    asks = {"origin": LISTED, "access-control-request-method": "POST"}
    answers = [await http.options("/v1/models", headers=asks), await http.get("/v1/models")]
    assert [answer.status_code for answer in answers] == [405, 200]
    names = {name for answer in answers for name in answer.headers}
    assert not {name for name in names if name.startswith("access-control")}
