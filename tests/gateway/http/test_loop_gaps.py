"""What comes in small pieces, or goes out in a long list, does not keep a gateway's loop standing: a whole
one runs in the loop that is measured, and its clients in threads."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import httpx2
import pytest
import redis.asyncio
from support.forms import PURPOSE, form
from support.gateway import HELLO, gateway_within
from support.packed import zstd
from support.servers.servers import Server
from support.standstill import LONGEST_S, shortest_gap

from millstream.gateway.batches.runner.input_stream import input_lines
from millstream.gateway.files.store.file_record import new_file_id
from millstream.gateway.http.bounded_connection import CHUNK_BYTES, SMALL_CHUNKS
from millstream.gateway.redis.tenant_keys import TenantKeys

CHAT = "/v1/chat/completions"
KEYS = TenantKeys("")
AT_ONCE = 4
FILES = 10_000  # most of a page


@pytest.fixture
async def address(valkey: Server) -> AsyncIterator[tuple[str, int]]:
    async with gateway_within(valkey.url) as made:
        yield made


async def all_at_once(work: Callable[..., object], *args: Any) -> None:
    await asyncio.gather(*(asyncio.to_thread(work, *args) for _ in range(AT_ONCE)))


def chunked(path: str, chunks: list[bytes]) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n"


def answer(address: tuple[str, int], data: bytes) -> bytes:
    """All that comes until the gateway closes."""
    got = b""
    with socket.create_connection(address, timeout=30) as connection:
        with suppress(ConnectionError, TimeoutError):
            connection.sendall(data)
            while part := connection.recv(65_536):
                got += part
    return got


@pytest.mark.parametrize("path", [CHAT, "/v1/nothing"])
async def test_chunks_of_a_byte_do_not_hold_the_loop(address: tuple[str, int], path: str) -> None:
    data = chunked(path, [b"x"] * 200_000)
    assert await shortest_gap(lambda: all_at_once(answer, address, data)) < LONGEST_S


async def test_small_chunks_are_read_up_to_a_number(address: tuple[str, int]) -> None:
    body = json.dumps({"model": "absent", "messages": HELLO}).encode()
    few = [body[place : place + 1] for place in range(len(body))]
    lawful, many = [b" " * CHUNK_BYTES] * (2 * SMALL_CHUNKS), [b" "] * (SMALL_CHUNKS + 100)
    for chunks, status, code in (
        (few, 404, "model_not_found"),
        ([*lawful, *few], 404, "model_not_found"),
        (many, 400, "invalid_http"),
        ([*lawful, *many], 400, "invalid_http"),
    ):
        got = await asyncio.to_thread(answer, address, chunked(CHAT, chunks))
        head, _, rest = got.partition(b"\r\n\r\n")
        assert (int(head.split()[1]), json.loads(rest)["error"]["code"]) == (status, code)


def ask(address: tuple[str, int], path: str, count: int) -> None:
    host, port = address
    page = httpx2.get(f"http://{host}:{port}{path}", timeout=60).json()
    assert len(page["data"]) == count


@pytest.mark.slow
async def test_a_long_list_of_files_does_not_hold_the_loop(address: tuple[str, int], valkey: Server) -> None:
    fields = {"filename": "x", "purpose": "batch", "bytes": 1, "created_s": 1, "expires_s": 0}
    async with redis.asyncio.Redis.from_url(valkey.url) as client, client.pipeline() as pipeline:
        for number in range(FILES):
            id = new_file_id()
            pipeline.hset(KEYS.file(id), mapping=fields)  # type: ignore[arg-type]
            pipeline.zadd(KEYS.files, {id: number})
        await pipeline.execute()
    longest_s = LONGEST_S / 2
    assert (
        await shortest_gap(lambda: all_at_once(ask, address, "/v1/files", FILES), longest_s=longest_s)
        < longest_s
    )


BLANK = {"empty": b"\n", "between others": b"\n" * 65_536 + b"x\n"}


@pytest.mark.parametrize("kind", BLANK)
async def test_nor_do_blank_lines_of_many_batches(kind: str) -> None:
    """As many as a gateway reads at once."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield BLANK[kind] * (256 * 1024 // len(BLANK[kind]))

    async def read() -> None:
        async for _ in input_lines(chunks()):
            pass

    async def read_all() -> None:
        await asyncio.gather(*(read() for _ in range(16)))

    assert await shortest_gap(read_all) < LONGEST_S


async def test_nor_do_compressed_uploads(address: tuple[str, int]) -> None:
    """Bombs, and members that have nothing."""

    def upload(packed: bytes) -> None:
        host, port = address
        body = form(PURPOSE, ('form-data; name="file"; filename="in"', packed))
        assert httpx2.post(f"http://{host}:{port}/v1/files", **body, timeout=60).status_code == 200

    for packed in (gzip.compress(bytes(30_000_000)), gzip.compress(b"") * 20_000, zstd(bytes(30_000_000))):
        assert await shortest_gap(partial(all_at_once, upload, packed)) < LONGEST_S
