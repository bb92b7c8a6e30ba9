"""Who sends nothing, or too slowly, keeps neither a connection nor a place among the requests under way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from support.forms import FILE, PURPOSE, form
from support.gateway import gateway_within
from support.servers.servers import Server

from millstream.gateway.http import bounded_connection, incoming_body

CHAT, FILES = "/v1/chat/completions", "/v1/files"
SHORT_S = 0.3  # in place of the half minutes
CLOSED_S = 5.0
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_connection, "HEAD_S", SHORT_S)
    for name in ("PIECE_S", "SILENCE_S", "DISCARDED_S"):
        monkeypatch.setattr(incoming_body, name, SHORT_S)
    monkeypatch.setattr(bounded_connection, "LINGER_S", SHORT_S)


@pytest.fixture
async def door(valkey: Server) -> AsyncIterator[tuple[str, int]]:
    """One request may be under way."""
    async with gateway_within(valkey.url, max_requests=1) as address:
        yield address


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(address: tuple[str, int], data: bytes = b"") -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(data)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What a client reads that reads while it sends: late bytes of its own may reset the connection."""
    said = b""
    async with asyncio.timeout(CLOSED_S):
        with suppress(ConnectionResetError):
            while piece := await reader.read(65_536):
                said += piece
    return said


async def trickle(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while True:
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(SHORT_S / 10)


async def said(streams: Streams, *, slowly: bool) -> bytes:
    """All of the answer, to a client that says nothing more, or a byte now and then."""
    reader, writer = streams
    trickling = asyncio.create_task(trickle(writer) if slowly else asyncio.sleep(0))
    try:
        return await until_closed(reader)
    finally:
        trickling.cancel()


def error_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def post(path: str, length: int, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


async def test_a_silent_connection_is_closed(door: tuple[str, int]) -> None:
    async with connected(door) as (reader, _):
        assert await until_closed(reader) == b""


@pytest.mark.parametrize("slowly", [False, True])
async def test_half_a_head_is_refused(door: tuple[str, int], slowly: bool) -> None:
    async with connected(door, GET[:-4]) as streams:
        assert error_of(await said(streams, slowly=slowly)) == (408, "head_too_slow")


async def test_a_kept_connection_may_be_silent(door: tuple[str, int]) -> None:
    """Not so its next request, once it has begun."""
    async with connected(door, GET) as (reader, writer):
        for _ in range(2):
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(2 * SHORT_S)
            writer.write(GET)
        await reader.readuntil(b"ok\n")
        writer.write(GET[:10])
        assert error_of(await until_closed(reader)) == (408, "head_too_slow")


@pytest.mark.parametrize("slowly", [False, True])
@pytest.mark.parametrize("path", [CHAT, FILES])
async def test_a_body_that_does_not_come_is_refused(door: tuple[str, int], path: str, slowly: bool) -> None:
    kind = form()["headers"]["content-type"]
    head = post(path, 100_000, f"Content-Type: {kind}")
    begun = form(PURPOSE, FILE)["content"][:-10] if path == FILES else b""
    async with connected(door, head + begun) as streams:
        assert error_of(await said(streams, slowly=slowly)) == (408, "body_too_slow")


async def test_a_slow_body_that_goes_on_is_read(door: tuple[str, int]) -> None:
    piece = b"x" * incoming_body.PIECE_BYTES
    whole: dict[str, Any] = form(PURPOSE, (FILE[0], 6 * piece))
    head = post(FILES, len(whole["content"]), f"Content-Type: {whole['headers']['content-type']}")
    async with connected(door, head) as (reader, writer):
        for begin in range(0, len(whole["content"]), len(piece)):
            writer.write(whole["content"][begin : begin + len(piece)])
            await asyncio.sleep(SHORT_S / 2)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def status_of(address: tuple[str, int]) -> int:
    async with connected(address, GET) as (reader, _):
        return int((await reader.readuntil(b"\r\n\r\n")).split()[1])


async def test_a_body_that_does_not_come_gives_its_place_back(door: tuple[str, int]) -> None:
    async with connected(door, post(CHAT, 100)) as (reader, _):
        await asyncio.sleep(SHORT_S / 3)
        assert await status_of(door) == 503
        await until_closed(reader)
        assert await status_of(door) == 200


async def test_a_refused_request_has_no_place(door: tuple[str, int]) -> None:
    """Its body is thrown away for a while."""
    async with connected(door, post("/v1/nothing", 100_000_000)) as (reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" in head
        writer.write(b"x" * 10_000)
        assert await status_of(door) == 200


async def test_an_answer_before_the_end_of_a_body_closes(door: tuple[str, int]) -> None:
    for path in ("/v1/nothing", "/healthz"):
        async with connected(door, post(path, 100_000_000)) as streams:
            answer = await said(streams, slowly=True)
            assert b"connection: close" in answer
