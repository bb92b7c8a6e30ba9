"""Whose request it is: keys, what each may use, limits, and that no tenant meets another's jobs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any

import httpx2
import openai
import pytest
from support.commands import invoke
from support.gateway import HELLO, Gateway, add_key, api_error
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker

from millstream.wire.messages.record import read_job

CHAT: dict[str, Any] = {"model": "default", "messages": HELLO}
ROUTES = [("GET", "/v1/models"), ("GET", "/v1/models/default"), ("GET", "/backlog"), ("GET", "/v1/files")]
POSTS = ["/v1/chat/completions", "/completions"]


def listed(server: Server) -> list[dict[str, Any]]:
    done = invoke("keys", "list", "--json", "--redis-url", server.url)
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_with_keys_each_route_asks_for_one(door: Gateway, worker: HandWorker, valkey: Server) -> None:
    key = await asyncio.to_thread(add_key, valkey, "acme")
    stored = await worker.redis.hgetall("{msgw}:keys")
    assert set(stored) == {hashlib.sha256(key.encode()).hexdigest().encode(), b"made"}
    assert key.encode() not in b"".join(stored.values())
    async with httpx2.AsyncClient(base_url=door.url) as http:
        for wrong in ("", "Bearer", f"Bearer {key}x", f"Basic {key}", "Bearer ms-" + "x" * 5000):
            headers = {"authorization": wrong} if wrong else {}
            answers = [await http.request(*route, headers=headers) for route in ROUTES]
            answers += [await http.post(path, json=CHAT, headers=headers) for path in POSTS]
            for answer in answers:
                assert answer.status_code == 401
                assert answer.json()["error"]["type"] == "authentication_error"
        for route in ROUTES:
            assert (await http.request(*route, headers={"authorization": f"bearer {key}"})).status_code == 200
        assert (await http.get("/healthz")).status_code == 200
    async with door.client(key) as client:
        asking = asyncio.ensure_future(client.chat.completions.create(**CHAT))
        job = await worker.take()
        assert job.request.tenant == "acme"
        record = await read_job(worker.redis, worker.keys, job.id)
        assert record is not None
        assert record.tenant == "acme"
        await job.end(last="x")
        await asking
        [one] = await asyncio.to_thread(listed, valkey)
        assert one["tenant"] == "acme"
        await asyncio.to_thread(invoke, "keys", "revoke", one["id"], "--redis-url", valkey.url)
        other = await asyncio.to_thread(add_key, valkey, "acme")
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with door.client(other) as client:
        assert len((await client.models.list()).data) == 2


async def test_a_key_may_use_its_queues_and_lanes(door: Gateway, worker: HandWorker, valkey: Server) -> None:
    key = await asyncio.to_thread(add_key, valkey, "acme", "--queue", "default", "--lane", "batch")
    async with door.client(key) as client:
        assert [one.id async for one in client.models.list()] == ["default"]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**CHAT | {"model": "other"})
        assert api_error(caught.value)["code"] == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")
        with pytest.raises(openai.PermissionDeniedError) as denied:
            await client.chat.completions.create(**CHAT, service_tier="priority")
        assert denied.value.param == "service_tier"
        asking = asyncio.ensure_future(client.chat.completions.create(**CHAT))
        job = await worker.take()
        assert job.request.lane == "batch"
        await job.end(last="x")
        await asking


async def test_tenants_with_the_same_idempotency_key_do_not_meet(
    door: Gateway, worker: HandWorker, valkey: Server
) -> None:
    keys = [await asyncio.to_thread(add_key, valkey, tenant) for tenant in ("acme", "bolt")]
    for key in keys:
        async with door.client(key) as client:
            asking = asyncio.ensure_future(
                client.chat.completions.create(**CHAT, extra_headers={"Idempotency-Key": "order-7"})
            )
            job = await worker.take()
            await job.end(last=f"for {job.request.tenant}")
            assert (await asking).choices[0].message.content == f"for {job.request.tenant}"


@pytest.fixture
def limited(valkey: Server) -> str:
    return add_key(valkey, "acme", "--requests-per-min", 3, "--tokens-per-min", 1000)


async def test_limits_are_told_and_kept(door: Gateway, worker: HandWorker, limited: str) -> None:
    async with door.client(limited) as client:
        for left in (2, 1, 0):
            asking = asyncio.ensure_future(
                client.chat.completions.with_raw_response.create(**CHAT, max_tokens=94)
            )
            await (await worker.take()).end(last="x")
            told = (await asking).headers
            assert told["x-ratelimit-limit-requests"] == "3"
            assert told["x-ratelimit-remaining-requests"] == str(left)
            assert told["x-ratelimit-limit-tokens"] == "1000"
            assert int(told["x-ratelimit-remaining-tokens"]) == pytest.approx(1000 - 100 * (3 - left), abs=4)
            assert re.fullmatch(r"\d+s|\d+m\d+s", told["x-ratelimit-reset-requests"])
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**CHAT, max_tokens=94)
        assert api_error(caught.value)["code"] == "rate_limit_exceeded"
        assert 15 < float(caught.value.response.headers["retry-after-ms"]) / 1000 <= 20
        assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert await worker.redis.xlen(worker.keys.lane("interactive")) == 0
    async with door.client(limited, retries=2) as client:
        with pytest.raises(openai.RateLimitError, match="ask for fewer") as never:
            await client.chat.completions.create(**CHAT, max_tokens=2000)
        assert never.value.response.headers["x-should-retry"] == "false"


async def test_tokens_under_way_are_bounded(door: Gateway, worker: HandWorker, valkey: Server) -> None:
    key = await asyncio.to_thread(add_key, valkey, "acme", "--max-enqueued-tokens", 150)
    async with door.client(key) as client:
        first = asyncio.ensure_future(client.chat.completions.create(**CHAT, max_tokens=100))
        job = await worker.take()
        with pytest.raises(openai.RateLimitError, match="tokens under way"):
            await client.chat.completions.create(**CHAT, max_tokens=100)
        await job.end(last="x")
        await first  # whose tokens are free shortly after its answer
        patient = client.with_options(max_retries=8)
        await worker.answered(patient.chat.completions.create(**CHAT, max_tokens=100), last="y")


def test_commands_of_keys(valkey: Server) -> None:
    url = ("--redis-url", valkey.url)
    assert "no keys" in invoke("keys", "list", *url).stderr
    added = invoke("keys", "add", "acme", "--queue", "default", "--tokens-per-min", 5000, *url)
    assert added.exit_code == 0, added.output
    assert re.fullmatch(r"ms-[\w-]{43}\n", added.stdout)
    key = added.stdout.strip()
    shown = invoke("keys", "list", *url).stdout
    assert "acme" in shown
    assert "default; both lanes; 5,000 tokens/min" in shown
    assert key not in shown
    made = json.loads(invoke("keys", "add", "bolt", "--json", *url).stdout)
    assert set(made) == {"id", "tenant", "key"}
    assert invoke("keys", "revoke", key, *url).exit_code == 0
    assert invoke("keys", "revoke", made["id"], "--json", *url).stdout.strip() == '{"revoked":true}'
    assert invoke("keys", "revoke", made["id"], *url).exit_code == 4
    for tenant in ("", "{acme}", "a b", "x" * 101):
        refused = invoke("keys", "add", tenant, *url)
        assert (refused.exit_code, "tenant: " in refused.stderr) == (2, True)
    assert "queue: " in invoke("keys", "add", "acme", "--queue", "{x}", *url).stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "--redis-url: give the server of the queues, or else --embedded"),
        (("--redis-url", "redis://127.0.0.1:1", "--embedded"), "--redis-url: give"),
        (("--redis-url", "redis://127.0.0.1:1", "--queue", "{x}"), "queue: "),
        (("--redis-url", "redis://127.0.0.1:1", "--port", 70_000), "--port: must be 0 to 65535"),
        (("--redis-url", "redis://127.0.0.1:1", "--timeout-s", 0), "--timeout-s: must be above 0"),
        (("--embedded", "--queue", "{x}"), "queue: "),
        (("--embedded", "--open", "--host", "0.0.0.0"), "--host: --open is for callers on this machine"),
        (("--embedded", "--allow-origin", "*"), "--allow-origin: without keys any web page could"),
        (("--redis-url", "redis://127.0.0.1:1", "--open", "--host", "::"), "--host: --open is for"),
        (("--redis-url", "redis://127.0.0.1:1", "--open", "--allow-origin", "*"), "name the origins"),
        (
            ("--redis-url", "redis://127.0.0.1:1", "--allow-origin", "https://a.example/"),
            "origin: must be an",
        ),
        (("--redis-url", "redis://127.0.0.1:1", "--allow-origin", "a.example"), "--allow-origin: must be an"),
        (("--redis-url", "redis://127.0.0.1:1", "--timeout-s", "inf"), "--timeout-s: must be at most ten"),
        (("--redis-url", "redis://127.0.0.1:1", "--batch-lease-s", 1e300), "--batch-lease-s: must be"),
        (("--redis-url", "redis://127.0.0.1:1", "--grace-s", "inf"), "--grace-s: must be at most ten years"),
        (("--redis-url", "redis://127.0.0.1:1", "--grace-s", "nan"), "--grace-s: must not be negative"),
        (("--redis-url", "redis://127.0.0.1:1", "--host", "no.such.host.invalid"), "Redis at"),
    ],
)
def test_options_that_cannot_be(
    options: tuple[object, ...], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MILLSTREAM_REDIS_URL", raising=False)
    refused = invoke("gateway", *options)
    assert refused.exit_code in (2, 3)
    assert problem in refused.stderr
