"""Files over HTTP, by OpenAI's client where it can ask for it: uploads, lists, contents, deletion."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.forms import ANCHOR, FILE, PURPOSE, field, form
from support.gateway import Gateway, api_error
from support.workers.counting_worker import until

from millstream.gateway.files.routes.upload import BATCH_LASTS_S

NAME = "räte 50%.jsonl"


def create(client: openai.AsyncOpenAI, data: bytes = b"x", **more: Any) -> Any:
    return client.files.create(**({"file": (NAME, data), "purpose": "batch"} | more))


def stored(door: Gateway) -> list[Path]:
    """Objects of files, also those that are not finished."""
    return [file for file in (door.folder / "files").rglob("*") if file.is_file()]


async def test_the_life_of_a_file(door: Gateway, client: openai.AsyncOpenAI) -> None:
    data = os.urandom(200_000)
    made = await create(client, data, expires_after={"anchor": "created_at", "seconds": 3600})
    assert (made.object, made.filename, made.bytes, made.purpose) == ("file", NAME, len(data), "batch")
    assert made.status == "processed"
    assert made.expires_at == made.created_at + 3600
    assert abs(made.created_at - time.time()) < 60
    assert await client.files.retrieve(made.id) == made
    assert await client.files.wait_for_processing(made.id, poll_interval=0.01) == made
    answer = await client.files.content(made.id)
    assert answer.content == data
    assert "r%C3%A4te%2050%25.jsonl" in answer.response.headers["content-disposition"]
    [file] = stored(door)
    assert file.name == made.id
    gone = await client.files.delete(made.id)
    assert gone.model_dump() == {"id": made.id, "object": "file", "deleted": True}
    assert stored(door) == []
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            await call(made.id)
        assert api_error(error.value)["code"] == "not_found"


async def test_a_repeated_upload_is_one_file(door: Gateway, client: openai.AsyncOpenAI) -> None:
    once = {"extra_headers": {"Idempotency-Key": "upload-1"}}
    made = await create(client, b"one", **once)
    assert await create(client, b"one", **once) == made
    again = await asyncio.gather(*(create(client, b"one", **once) for _ in range(3)))
    assert again == [made] * 3
    for change in ({"data": b"two"}, {"purpose": "evals"}, {"file": ("other", b"one")}):
        with pytest.raises(openai.ConflictError) as error:
            await create(client, **({"data": b"one"} | change), **once)
        assert api_error(error.value)["code"] == "idempotency_key_reused"
        assert error.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.ConflictError, match="another request"):  # of another kind
        await client.batches.create(
            input_file_id=made.id, endpoint="/v1/completions", completion_window="24h", **once
        )
    assert [one.id async for one in client.files.list()] == [made.id]
    assert [file.name for file in stored(door)] == [made.id]
    assert (await create(client, b"one")).id != made.id
    await client.files.delete(made.id)
    with pytest.raises(openai.ConflictError, match="was deleted"):
        await create(client, b"one", **once)
    with pytest.raises(openai.BadRequestError) as refused:
        await create(client, extra_headers={"Idempotency-Key": "k" * 256})
    assert refused.value.param == "Idempotency-Key"


async def test_files_stay_as_long_as_they_are_to(client: openai.AsyncOpenAI) -> None:
    batch, other = await create(client), await create(client, purpose="user_data", file=b"no name")
    assert batch.expires_at == batch.created_at + BATCH_LASTS_S
    assert (other.expires_at, other.filename) == (None, "upload")
    assert (await client.files.content((await create(client, b"")).id)).content == b""


async def test_lists_are_read_to_their_end(client: openai.AsyncOpenAI) -> None:
    assert (await client.files.list()).data == []
    made = [(await create(client, purpose=("batch", "evals")[i % 2])).id for i in range(5)]
    for limit in (1, 2, 5, 10_000):
        assert [one.id async for one in client.files.list(limit=limit)] == made[::-1]
        assert [one.id async for one in client.files.list(limit=limit, order="asc")] == made
    assert [one.id async for one in client.files.list(purpose="evals", limit=1)] == [made[3], made[1]]
    page = await client.files.list(after=made[0])
    assert (page.data, page.has_more) == ([], False)
    raw = json.loads((await client.files.with_raw_response.list(limit=2)).text)
    assert (raw["object"], raw["first_id"], raw["last_id"]) == ("list", made[4], made[3])
    assert raw["has_more"] is True


async def test_downloads_go_on_where_they_were_cut(
    client: openai.AsyncOpenAI, http: httpx2.AsyncClient
) -> None:
    data = b"0123456789" * 1000
    path = f"/v1/files/{(await create(client, data)).id}/content"
    whole = await http.get(path)
    assert (whole.content, whole.headers["content-encoding"]) == (data, "gzip")
    plain = await http.get(path, headers={"accept-encoding": "identity"})
    assert (plain.content, plain.headers["content-length"]) == (data, "10000")
    assert plain.headers["accept-ranges"] == "bytes"
    for asked, start, end in (
        ("bytes=0-0", 0, 1), ("bytes=9990-", 9990, 10_000), ("bytes=5-99999", 5, 10_000),
        ("bytes=-3", 9997, 10_000), ("bytes=-99999", 0, 10_000), ("Bytes=7-8", 7, 9),
    ):  # fmt: skip
        part = await http.get(path, headers={"range": asked})
        assert (part.status_code, part.content) == (206, data[start:end])
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/10000"
        assert "content-encoding" not in part.headers
    for asked in ("bytes=10000-", "bytes=-0"):
        part = await http.get(path, headers={"range": asked})
        assert (part.status_code, part.headers["content-range"]) == (416, "bytes */10000")
        assert part.json()["error"]["param"] == "Range"
    for headers in (
        {"range": "bytes=0-1,4-5"}, {"range": "bytes=5-4"}, {"range": "bytes=-"}, {"range": "lines=0-1"},
        {"range": "bytes=0-1", "if-range": '"x"'},
    ):  # fmt: skip
        assert (await http.get(path, headers=headers)).content == data
    head = await http.head(path, headers={"range": "bytes=0-9"})
    assert (head.status_code, head.headers["content-length"], head.content) == (206, "10", b"")


DAMAGED = [
    form(*(field(f"x{i}", "") for i in range(30))),
    form(("attachment", b""), PURPOSE, FILE),
    form(("form-data; name=" + "x" * 9000, b""), PURPOSE, FILE),
    *(
        form(FILE, PURPOSE) | change
        for change in (
            {"headers": {"content-type": "multipart/form-data"}},
            {"headers": {"content-type": "application/json"}},
            {"headers": {"content-type": "multipart/form-data; boundary=" + "x" * 300}},
            {"content": form(FILE, PURPOSE)["content"][:-10]},
            {"content": b""},
            {"content": b"{}"},
        )
    ),
]


async def test_a_form_that_is_refused_leaves_no_file(door: Gateway, http: httpx2.AsyncClient) -> None:
    for body in DAMAGED:
        answer = await http.post("/v1/files", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_multipart"), body
    late = await http.post("/v1/files", **form(FILE, field("purpose", "")))
    assert (late.status_code, late.json()["error"]["param"]) == (400, "purpose")
    assert stored(door) == []
    assert (await http.get("/v1/files")).json()["data"] == []
    more = form(field("unknown", "1"), FILE, PURPOSE, ANCHOR, field("expires_after[seconds]", "3600"))
    assert (await http.post("/files", **more)).json()["bytes"] == 5


async def test_a_file_over_its_bound_is_refused(door: Gateway, client: openai.AsyncOpenAI) -> None:
    """One that says its length before it is read, one that does not at the bound."""
    for size, told in ((300_001, False), (30_000_000, True)):
        with pytest.raises(openai.APIStatusError) as error:
            await create(client, bytes(size))
        assert (error.value.status_code, api_error(error.value)["param"]) == (413, "file"), told
    assert (await create(client, bytes(300_000))).bytes == 300_000
    head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 400000\r\n"
    got = door.raw(f"{head}Content-Type: multipart/form-data; boundary=b\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 413 ")
    assert len(stored(door)) == 1


async def test_a_client_that_goes_leaves_nothing(door: Gateway, http: httpx2.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield form(PURPOSE, FILE)["content"][:-10]
        yield b"x" * 100_000  # more than the gateway takes in before it reads
        raise KeyError

    with pytest.raises(KeyError):
        await http.post("/v1/files", content=body(), headers=form()["headers"])
    await until(lambda: stored(door) == [])
    assert (await http.get("/v1/files")).json()["data"] == []

    async def counted() -> bool:
        return 'route="/v1/files",status="499"' in (await http.get("/metrics")).text

    await until(counted)
