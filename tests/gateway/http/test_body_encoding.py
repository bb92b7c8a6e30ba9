"""Bodies that come compressed, or in the way of other systems' clients."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from typing import Any

import httpx2
import pytest
from starlette.requests import Request
from support.gateway import HELLO
from support.workers.hand_worker import HandWorker

from millstream.gateway.http.json_body import body_of
from millstream.openai.api_error import ApiError

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "default", "messages": HELLO}).encode()
GZIPPED = gzip.compress(BODY, mtime=0)  # without the time, which would be part of the tests' names
WAYS = [
    ("gzip", GZIPPED),
    ("X-GZIP", GZIPPED),
    ("deflate", zlib.compress(BODY)),
    ("identity", BODY),
    ("", b"\xef\xbb\xbf" + BODY),  # as .NET and PowerShell send it
]


@pytest.mark.parametrize(("encoding", "content"), WAYS, ids=[name or "mark" for name, _ in WAYS])
async def test_a_body_is_the_same_however_it_comes(
    worker: HandWorker, encoding: str, content: bytes, http: httpx2.AsyncClient
) -> None:
    once = {"idempotency-key": f"once-{encoding}"}
    headers = once | ({"content-encoding": encoding} if encoding else {})
    assert (await http.get("/v1/models/")).json()["data"][0]["id"] == "default"
    waiting = asyncio.create_task(http.post(f"{CHAT}/", content=content, headers=headers))
    async with asyncio.timeout(10):
        await (await worker.take()).end(last="Hi")
    answer = await waiting
    assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, "Hi")
    again = await http.post(CHAT, content=BODY, headers=once)
    assert again.json() == answer.json()


def posted(content: bytes, encoding: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    return Request(
        {"type": "http", "headers": [(b"content-encoding", encoding.encode())]},
        receive,  # type: ignore[arg-type]
    )


ZEROS = bytes(10**6)
DAMAGED = [
    (b"", "it ends too early"),
    (GZIPPED[:-9], "it ends too early"),
    (GZIPPED * 2, "bytes come behind its end"),
    (BODY, "incorrect header check"),
    (GZIPPED[:-8] + bytes(8), "incorrect data check"),
]


@pytest.mark.parametrize(("content", "problem"), DAMAGED, ids=[problem for _, problem in DAMAGED])
async def test_a_damaged_body_is_refused_with_the_reason(content: bytes, problem: str) -> None:
    with pytest.raises(ApiError, match=problem) as refused:
        await body_of(posted(content, "gzip"), 10_000)
    assert (refused.value.status, refused.value.code) == (400, "invalid_encoding")


async def test_a_body_that_unpacks_beyond_its_bound_is_cut() -> None:
    """Of 64 MB that it stands for no more than the bound is ever held."""
    assert await body_of(posted(gzip.compress(ZEROS, mtime=0), "gzip"), len(ZEROS)) == ZEROS
    bomb = zlib.compressobj(wbits=31)
    packed = b"".join(bomb.compress(ZEROS) for _ in range(64)) + bomb.flush()
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            await body_of(posted(packed, "gzip"), len(ZEROS))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")
    assert most < 3 * len(packed) + 4 * len(ZEROS)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip"])
async def test_another_encoding_is_refused_with_the_remedy(encoding: str, http: httpx2.AsyncClient) -> None:
    for path, taken in ((CHAT, "gzip, deflate"), ("/v1/batches", "gzip, deflate"), ("/v1/files", "identity")):
        answer = await http.post(path, content=b"x", headers={"content-encoding": encoding})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (415, "unsupported_encoding")
        assert "as it is" in error["message"]
        assert answer.headers["accept-encoding"] == taken
