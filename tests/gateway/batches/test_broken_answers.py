"""Rows and contents whose objects are gone, or go while they are read: a status while there can be one, else
an answer that breaks off. Neither is a traceback in the log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis.asyncio
import structlog
from support.batches import CHAT
from support.gateway import gateway_within
from support.servers.servers import Server
from support.workers.counting_worker import until

from millstream.gateway.batches.records.batch_record import BatchStatus
from millstream.gateway.files.store.file_record import object_path
from millstream.gateway.files.store.object_store import ObjectStore, StoreUnavailable
from millstream.gateway.redis.tenant_keys import TenantKeys

KEYS, BATCH, FILE = TenantKeys(""), "batch_1", f"file-{1:032x}"
RESULTS, CONTENT = f"/v1/batches/{BATCH}/results", f"/v1/files/{FILE}/content"
ROW = b'{"custom_id":"a"}\n'
BYTES = 600 * 1024  # more than a chunk of a read


@pytest.fixture
async def http(valkey: Server, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Of a gateway with a batch of two parts, and a file; no object is there."""
    batch: dict[Any, Any] = {
        "status": BatchStatus.COMPLETED, "endpoint": CHAT, "input_file_id": FILE, "completion_window": "24h",
        "created_s": 1, "expires_s": 2,
    }  # fmt: skip
    file: dict[Any, Any] = {
        "filename": "x", "purpose": "batch", "bytes": BYTES, "created_s": 1, "expires_s": 0
    }  # fmt: skip
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        await client.hset(KEYS.batch(BATCH), mapping=batch)
        await client.rpush(KEYS.batch_parts(BATCH), *(f"output {name} 1 {len(ROW)}" for name in "ab"))
        await client.hset(KEYS.file(FILE), mapping=file)
    async with gateway_within(valkey.url, files_url=str(tmp_path)) as (host, port):
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}") as made:
            yield made


def put(folder: Path, path: str, data: bytes) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(data)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """Of the gateway's log."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def tracebacks(lines: list[Any]) -> list[Any]:
    return [line for line in lines if "exc_info" in line]


async def broken_off(lines: list[Any]) -> Any:
    """The error in the line of the answer that broke off, which comes behind its end."""
    await until(lambda: any("breaks_off" in line for line in lines))
    [line] = [line for line in lines if "breaks_off" in line]
    assert (line["log_level"], line["status"], line["breaks_off"]) == ("warning", 200, True)
    return line["error"]


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
@pytest.mark.parametrize("path", [RESULTS, CONTENT])
async def test_what_is_gone_is_not_found(
    http: httpx2.AsyncClient, path: str, accept: str, lines: list[Any]
) -> None:
    answer = await http.get(path, headers={"accept": accept})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert tracebacks(lines) == []


async def test_rows_whose_next_part_is_gone_break_off(
    http: httpx2.AsyncClient, tmp_path: Path, lines: list[Any]
) -> None:
    put(tmp_path, f"batches/{BATCH}/a", ROW)
    async with http.stream("GET", RESULTS) as answer:
        assert answer.status_code == 200
        chunks = answer.aiter_bytes()
        assert await anext(chunks) == ROW
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(chunks)
    assert tracebacks(lines) == []
    assert await broken_off(lines) == "not_found"


async def failing(
    store: ObjectStore, path: str, start: int = 0, end: int | None = None, read: Any = ObjectStore.read
) -> AsyncIterator[bytes]:
    """Fails behind the first chunk of a file."""
    async for chunk in read(store, path, start, end):
        yield chunk
        if path.startswith("files/"):
            raise StoreUnavailable("the store went away")


async def test_a_content_whose_store_goes_away_breaks_off(
    http: httpx2.AsyncClient, tmp_path: Path, lines: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    put(tmp_path, object_path("", FILE), bytes(BYTES))
    monkeypatch.setattr(ObjectStore, "read", failing)
    async with http.stream("GET", CONTENT, headers={"accept-encoding": "identity"}) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx2.RemoteProtocolError):
            await answer.aread()
    assert tracebacks(lines) == []
    assert await broken_off(lines) == "unavailable"
