"""All gateways of a server have one store, and what no record names is swept from it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from support.gateway import gateway
from support.servers.servers import Server

from millstream.errors import Unavailable
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.file_record import FileRecord, new_file_id
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.files.store.orphans import AGE_S, Orphans
from millstream.gateway.files.store.store_marker import MARKER, StoreMarker, StoreMismatch
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import STORE, TenantKeys


@pytest.fixture
def marker(access: GatewayRedis, store: ObjectStore) -> StoreMarker:
    return StoreMarker(access, store)


async def test_the_second_store_of_a_server_is_refused(
    access: GatewayRedis, store: ObjectStore, marker: StoreMarker, tmp_path: Path
) -> None:
    since_s = await marker.confirm()
    assert abs(since_s - time.time()) < 10
    assert await StoreMarker(access, ObjectStore(store.url)).confirm() == since_s
    for name in ("empty", "marked"):
        other = ObjectStore(str(tmp_path / name))
        if name == "marked":
            await other.put(MARKER, b"of another server")
        with pytest.raises(StoreMismatch, match="--files-url"):
            await StoreMarker(access, other).confirm()
    assert not (tmp_path / "empty" / MARKER).exists()
    await store.delete(MARKER)
    with pytest.raises(StoreMismatch):
        await StoreMarker(access, store).confirm()


async def test_a_server_that_has_lost_its_memory_takes_the_store(
    access: GatewayRedis, store: ObjectStore, marker: StoreMarker
) -> None:
    await marker.confirm()
    before = await access.client.hget(STORE, "id")
    await access.client.delete(STORE)
    await StoreMarker(access, store).confirm()
    assert await access.client.hget(STORE, "id") == before


async def test_a_store_that_cannot_be_used_says_so(access: GatewayRedis, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="store of files"):
        await StoreMarker(access, ObjectStore(f"{tmp_path}/file/below")).confirm()


@pytest.mark.slow
async def test_a_gateway_with_another_store_does_all_but_files(valkey: Server, tmp_path: Path) -> None:
    async with httpx2.AsyncClient() as http:
        with gateway(valkey.url, "--files-url", tmp_path / "one") as door:
            assert (await http.get(f"{door.url}/v1/files")).status_code == 200
        with gateway(valkey.url, "--files-url", tmp_path / "two") as door:
            answer = await http.post(f"{door.url}/v1/files")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_mismatch")
            assert (await http.get(f"{door.url}/v1/models")).status_code == 200
        with gateway(valkey.url, "--files-url", "/proc/nothing") as door:
            answer = await http.post(f"{door.url}/v1/files")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert "/proc" not in answer.text
            assert (await http.get(f"{door.url}/v1/models")).status_code == 200


def made_old(store: ObjectStore, path: str) -> None:
    assert store.folder is not None
    old_s = time.time() - AGE_S - 60
    os.utime(store.folder / path, (old_s, old_s))


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_orphans_are_swept_after_a_day(
    access: GatewayRedis, store: ObjectStore, catalogue: FileCatalogue, marker: StoreMarker
) -> None:
    await marker.confirm()
    await access.client.hincrby(STORE, "since_ms", -10_000 * int(AGE_S))
    records = [
        FileRecord.new("acme", id=new_file_id(), filename="a", purpose="batch", bytes=1, lasts_s=None)
        for _ in range(4)
    ]
    kept, young, orphan, expired = records
    for one in records:
        await store.write(one.path, one_chunk(b"x"))
    for one in (kept, orphan, expired):
        made_old(store, one.path)
    for one in (kept, expired):
        await catalogue.add(one)
    await access.client.delete(TenantKeys("acme").file(expired.id))  # as its time brings about
    for path in ("files/t/not-ours", f"{young.path}#1", f"{orphan.path}#1"):
        assert store.folder is not None
        (store.folder / path).parent.mkdir(exist_ok=True)
        (store.folder / path).touch()
    for path in ("files/t/not-ours", f"{orphan.path}#1"):
        made_old(store, path)
    orphans = Orphans(access, store, catalogue, StoreMarker(access, store))
    assert await orphans.sweep() == 3
    assert await orphans.sweep() == 0
    left = {file.name for file in (store.folder / "files").rglob("*") if file.is_file()}
    assert left == {kept.id, young.id, "not-ours", f"{young.id}#1"}
    assert await access.client.zrange(TenantKeys("acme").files, 0, -1) == [kept.id.encode()]


async def test_objects_from_before_a_server_knew_the_store_stay(
    access: GatewayRedis, store: ObjectStore, catalogue: FileCatalogue, marker: StoreMarker
) -> None:
    path = f"files/t/{new_file_id()}"
    await store.put(path, b"x")
    made_old(store, path)
    assert await Orphans(access, store, catalogue, marker).sweep() == 0
    assert [one.path async for one in store.list("files")] == [path]
