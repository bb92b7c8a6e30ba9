"""Uploads that are compressed: a batch's input is stored plain, all else as it is."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import psutil
import pytest
from support.forms import PURPOSE, Part, field, form, repeated
from support.gateway import Gateway, api_error, gateway, gateway_within
from support.packed import PACKERS
from support.servers.servers import Server

from millstream.batch.files import compressed
from millstream.batch.files.compressed import FileCompression

LINES = b'{"custom_id": "a"}\n' * 5000
MOST = 300_000  # bytes of a file
endings = pytest.mark.parametrize("ending", FileCompression)


def file_part(name: str, data: bytes) -> Part:
    return (f'form-data; name="file"; filename="{name}"', data)


def stored(door: Gateway) -> list[bytes]:
    return [path.read_bytes() for path in (door.folder / "files").rglob("*") if path.is_file()]


@endings
@pytest.mark.parametrize("purpose_first", [True, False])
async def test_an_input_is_stored_plain(
    door: Gateway, http: httpx2.AsyncClient, ending: FileCompression, purpose_first: bool
) -> None:
    """Wherever its purpose stands in the form, and however small the pieces are that it comes in."""
    packed = PACKERS[ending](LINES)
    parts = [PURPOSE, file_part(f"in.jsonl{ending}", packed)]
    body = form(*(parts if purpose_first else parts[::-1]))

    async def pieces() -> AsyncIterator[bytes]:
        head = body["content"].index(packed) + 2
        for begin, end in ((0, head), (head, head + 1), (head + 1, len(body["content"]))):
            yield body["content"][begin:end]

    made = (await http.post("/v1/files", content=pieces(), headers=body["headers"])).json()
    assert (made["filename"], made["bytes"]) == ("in.jsonl", len(LINES))
    assert (await http.get(f"/v1/files/{made['id']}/content")).content == LINES
    assert stored(door) == [LINES]


@endings
async def test_other_files_stay_as_they_are(client: openai.AsyncOpenAI, ending: FileCompression) -> None:
    packed = PACKERS[ending](LINES)
    made = await client.files.create(file=(f"a{ending}", packed), purpose="user_data")
    assert (made.filename, made.bytes) == (f"a{ending}", len(packed))
    assert (await client.files.content(made.id)).content == packed
    plain = await client.files.create(file=(f"a{ending}", b"plain"), purpose="batch")
    assert (plain.filename, plain.bytes) == (f"a{ending}", 5)


@endings
@pytest.mark.parametrize("purpose_first", [True, False])
async def test_the_bound_is_that_of_the_plain_bytes(
    door: Gateway, http: httpx2.AsyncClient, ending: FileCompression, purpose_first: bool
) -> None:
    for size, status in ((MOST, 200), (MOST + 1, 413), (100 * MOST, 413)):
        parts = [PURPOSE, file_part("in", PACKERS[ending](bytes(size)))]
        answer = await http.post("/v1/files", **form(*(parts if purpose_first else parts[::-1])))
        assert answer.status_code == status
    assert answer.json()["error"]["code"] == "file_too_large"
    assert [len(data) for data in stored(door)] == [MOST]


async def test_members_without_content_are_bounded_too(door: Gateway, http: httpx2.AsyncClient) -> None:
    members = gzip.compress(b"") * (1 + MOST // len(gzip.compress(b"")))
    answer = await http.post("/v1/files", content=repeated(members, 1), headers=form()["headers"])
    assert answer.status_code == 413
    assert stored(door) == []


@endings
@pytest.mark.parametrize("purpose_first", [True, False])
async def test_damaged_data_leave_no_file(
    door: Gateway, http: httpx2.AsyncClient, ending: FileCompression, purpose_first: bool
) -> None:
    packed = PACKERS[ending](os.urandom(100_000))
    for wrong in (packed[:-5], packed[:50_000], packed + b"x", packed[:9] + bytes(20) + packed[29:]):
        parts = [PURPOSE, file_part("in.jsonl", wrong)]
        answer = await http.post("/v1/files", **form(*(parts if purpose_first else parts[::-1])))
        error: dict[str, Any] = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "file")
        assert "compress it again, or send it as it is" in error["message"]
    assert stored(door) == []


async def test_a_repeated_upload_is_compared_as_it_was_sent(client: openai.AsyncOpenAI) -> None:
    once = {"Idempotency-Key": "packed"}
    packed = gzip.compress(LINES)

    async def create(name: str, data: bytes) -> str:
        return (await client.files.create(file=(name, data), purpose="batch", extra_headers=once)).id

    made = await create("in.jsonl.gz", packed)
    assert await create("in.jsonl.gz", packed) == made
    with pytest.raises(openai.ConflictError) as error:
        await create("in.jsonl", LINES)
    assert api_error(error.value)["code"] == "idempotency_key_reused"


async def test_two_purposes_are_one_too_many(door: Gateway, http: httpx2.AsyncClient) -> None:
    """The file was stored by the first."""
    body = form(PURPOSE, file_part("in.gz", gzip.compress(LINES)), field("purpose", "evals"))
    answer = await http.post("/v1/files", **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "purpose")
    assert stored(door) == []


@pytest.mark.parametrize("ending", [None, *(pytest.param(one, marks=pytest.mark.slow) for one in PACKERS)])
async def test_long_uploads_take_no_memory(valkey: Server, ending: FileCompression | None) -> None:
    """300 MB; 100 MB that are as much when they are compressed, and a bomb of 500 MB. The process may hold
    some parts of 8 MiB."""
    block = os.urandom(1024**2)
    members, spare_mib = ([(block, 100), (bytes(100 * 1024**2), 5)], 80) if ending else ([(block, 300)], 64)
    with gateway(valkey.url) as door:
        async with httpx2.AsyncClient(base_url=door.url, timeout=120) as http:
            assert (await http.get("/v1/files")).status_code == 200
            before = psutil.Process(door.process.pid).memory_info().rss
            for member, count in members:
                body = repeated(PACKERS[ending](member) if ending else member, count)
                answer = await http.post("/v1/files", content=body, headers=form()["headers"])
                assert answer.json()["bytes"] == len(member) * count
            assert door.most_memory() - before < spare_mib * 1024**2


async def test_an_installation_without_zstd_says_so(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gzip needs nothing."""

    def missing(name: str) -> Any:
        raise ImportError(name)

    async with gateway_within(valkey.url, files_url=str(tmp_path)) as (host, port):
        monkeypatch.setattr(compressed, "importlib", SimpleNamespace(import_module=missing))
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}") as http:
            for ending, status in ((FileCompression.GZIP, 200), (FileCompression.ZSTD, 400)):
                body = form(PURPOSE, file_part("in", PACKERS[ending](LINES)))
                answer = await http.post("/v1/files", **body)
                assert answer.status_code == status
        assert "send it compressed with gzip" in answer.json()["error"]["message"]
