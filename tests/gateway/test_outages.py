"""An outage is two lines of the gateway's log, however many loops and requests meet it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest
import structlog
from support.gateway import Gateway, gateway
from support.servers.servers import Server
from support.workers.counting_worker import until

from millstream.errors import Unavailable
from millstream.gateway.files.store.object_store import ObjectStore, StoreUnavailable
from millstream.gateway.files.store.store_marker import MARKER
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.logs import failure_log

BEGIN, END = "server does not answer", "server answers again"
OUTAGE_S = 6.0  # of loops that try each second, or each five


def told(door: Gateway) -> Counter[str]:
    """The warnings but those of requests, by what they say."""
    lines = [json.loads(line) for line in door.lines]
    return Counter(one["event"] for one in lines if one["level"] != "info" and one["event"] != "request")


@pytest.mark.slow
async def test_an_outage_is_a_line_at_its_start_and_at_its_end() -> None:
    with Server("valkey") as server, gateway(server.url) as door:
        assert b" 200 " in door.get("/v1/models")
        server.kill()
        await until(lambda: told(door)[BEGIN] == 1)
        await asyncio.sleep(OUTAGE_S)
        refused = await asyncio.to_thread(door.get, "/v1/models")
        assert b" 503 " in refused
        assert told(door) == {BEGIN: 1}
        server.start()
        await until(lambda: told(door)[END] == 1)
        assert told(door) == {BEGIN: 1, END: 1}
        [end] = [line for line in map(json.loads, door.lines) if line["event"] == END]
        assert OUTAGE_S <= end["seconds"] < OUTAGE_S + 20


@pytest.mark.slow
async def test_a_gateway_that_starts_in_an_outage_says_so_once() -> None:
    with Server("valkey") as server:
        server.kill()
        with gateway(server.url) as door:
            await asyncio.sleep(OUTAGE_S)
            assert told(door) == {BEGIN: 1}
            server.start()
            await until(lambda: told(door)[END] == 1)
            assert told(door) == {BEGIN: 1, END: 1}


async def test_a_store_that_is_gone_is_told_once(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        store = ObjectStore(str(tmp_path))
        await store.create(MARKER, b"id")
        store.expect(MARKER)
        (tmp_path / MARKER).unlink()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.put("a", b"b")
    [line] = lines
    assert (line["event"], line["log_level"]) == ("store of files cannot be used", "warning")
    assert MARKER in line["error"]


async def test_a_full_server_is_told_as_a_refusal_and_no_outage() -> None:
    with Server("valkey", maxmemory="1") as server, structlog.testing.capture_logs() as lines:
        redis = GatewayRedis(server.url)
        for _ in range(3):
            try:
                with redis.reach():
                    await redis.client.set("a", "b")
            except Unavailable:
                pass
            with redis.reach():
                await redis.client.get("a")
        await redis.aclose()
    [line] = lines
    assert (line["event"], line["log_level"]) == ("server refuses a command", "warning")
    assert "maxmemory" in line["error"]


async def test_an_error_is_told_once_by_whoever_meets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the connection that it came by, and by a task that does not know which that was."""
    monkeypatch.setattr(failure_log, "_AGAIN_S", 0.0)
    redis = GatewayRedis("redis://127.0.0.1:1")
    with structlog.testing.capture_logs() as lines:
        with pytest.raises(Unavailable) as met, redis.reach():
            await redis.client.ping()
        redis.tell(met.value)
        redis.tell(Unavailable("of a client of queues"))
    assert [(line["event"], line["times"]) for line in lines] == [(BEGIN, 1), ("server refuses a command", 1)]
    await redis.aclose()
