"""The records of files: each tenant sees its own, in order, until they expire."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from support.servers.servers import Server

from millstream.errors import AccessDenied, ProtocolError
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.file_record import FileRecord, new_file_id, object_path, owner_of
from millstream.gateway.redis.file_calls import OnceFile
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.record_list import RecordPage
from millstream.gateway.redis.tenant_keys import TenantKeys


def record(tenant: str = "acme", purpose: str = "batch", lasts_s: int | None = None) -> FileRecord:
    name = "räte 50%.jsonl"
    return FileRecord.new(
        tenant, id=new_file_id(), filename=name, purpose=purpose, bytes=2**40, lasts_s=lasts_s
    )


async def add(catalogue: FileCatalogue, *records: FileRecord) -> list[str]:
    for one in records:
        await catalogue.add(one)
    return [one.id for one in records]


def ids(page: RecordPage[FileRecord] | None) -> list[str]:
    assert page is not None
    return [one.id for one in page.records]


async def test_a_record_is_found_by_its_tenant_alone(catalogue: FileCatalogue) -> None:
    one = record(lasts_s=3600)
    for _ in range(2):
        await catalogue.add(one)
    assert await catalogue.find("acme", one.id) == one
    page = await catalogue.page("acme", limit=10)
    assert page == RecordPage((one,), False)
    for tenant, id in (("", one.id), ("other", one.id), ("acme", "file-*"), ("acme", new_file_id())):
        assert await catalogue.find(tenant, id) is None
        assert not await catalogue.remove(tenant, id)
    assert await catalogue.remove("acme", one.id)
    assert await catalogue.find("acme", one.id) is None
    assert await catalogue.page("acme", limit=10) == RecordPage((), False)


async def test_a_key_is_one_file(catalogue: FileCatalogue) -> None:
    """Also where the answer to the first was lost; other keys, uploads and tenants are others."""
    first, second = record(), record()
    once = OnceFile("k" * 64, "d" * 64, ttl_ms=60_000)
    for _ in range(2):
        assert await catalogue.add(first, once) == ("new", first.id)
    assert await catalogue.add(second, once) == ("same", first.id)
    assert await catalogue.add(second, replace(once, digest="e" * 64)) == ("conflict", first.id)
    assert await catalogue.page("acme", limit=10) == RecordPage((first,), False)
    assert await catalogue.add(second, replace(once, key="l" * 64)) == ("new", second.id)
    other = record("other")
    assert await catalogue.add(other, once) == ("new", other.id)
    forgotten = record()
    await catalogue.add(forgotten, replace(once, key="m" * 64, ttl_ms=1))
    await asyncio.sleep(0.05)
    another = record()
    assert await catalogue.add(another, replace(once, key="m" * 64)) == ("new", another.id)


async def test_pages_follow_each_other(catalogue: FileCatalogue) -> None:
    made = await add(catalogue, *(record(purpose=("batch", "evals")[i % 2]) for i in range(7)))
    for newest_first, order in ((True, made[::-1]), (False, made)):
        seen: list[str] = []
        while True:
            after = seen[-1] if seen else None
            page = await catalogue.page("acme", after=after, limit=2, newest_first=newest_first)
            seen += ids(page)
            assert page is not None
            if not page.has_more:
                break
        assert seen == order
        page = await catalogue.page("acme", after=order[-1], limit=2, newest_first=newest_first)
        assert page == RecordPage((), False)
    page = await catalogue.page(
        "acme", limit=2, newest_first=False, wanted=lambda one: one.purpose == "evals"
    )
    assert (ids(page), page is not None and page.has_more) == ([made[1], made[3]], True)
    assert await catalogue.page("acme", after=new_file_id(), limit=2) is None


async def test_a_page_looks_further_than_other_purposes(catalogue: FileCatalogue) -> None:
    kept = await add(catalogue, record(purpose="evals"))
    await add(catalogue, *(record() for _ in range(120)))
    assert ids(await catalogue.page("acme", limit=1, wanted=lambda one: one.purpose == "evals")) == kept


async def test_records_expire(catalogue: FileCatalogue) -> None:
    soon = replace(record(), expires_s=int(time.time()) + 1)
    [gone, stays] = await add(catalogue, soon, record())
    async with asyncio.timeout(5):
        while await catalogue.find("acme", gone) is not None:  # noqa: ASYNC110 — it is the server's time
            await asyncio.sleep(0.05)
    assert soon.expires_s is not None
    assert time.time() >= soon.expires_s - 0.5
    assert ids(await catalogue.page("acme", limit=1)) == [stays]


async def test_a_damaged_record_is_an_error(catalogue: FileCatalogue, access: GatewayRedis) -> None:
    [id] = await add(catalogue, record())
    await access.client.hset(TenantKeys("acme").file(id), "bytes", "many")
    with pytest.raises(ProtocolError, match="damaged"):
        await catalogue.find("acme", id)


def test_a_path_tells_whose_it_is() -> None:
    id = new_file_id()
    for tenant in ("", "a", "..", "Acme.Inc:7@x-_" * 7):
        path = object_path(tenant, id)
        assert owner_of(path) == (tenant, id)
        assert path.count("/") == 2
        assert ".." not in path
    for path in (f"files/{id}", f"files/t1/{id}", f"files/tA/{id}", "files/t/other", f"other/t/{id}"):
        assert owner_of(path) is None


async def test_a_list_that_may_not_be_read_is_not_empty(server: Server, access: GatewayRedis) -> None:
    await add(FileCatalogue(access), record())
    rules = ("on", ">secret", "~*", "&*", "+@all", "-hgetall")
    await access.client.execute_command("ACL", "SETUSER", "blind", *rules)
    blind = GatewayRedis(server.url.replace("redis://", "redis://blind:secret@"))
    try:
        with pytest.raises(AccessDenied):
            await FileCatalogue(blind).page("acme", limit=10)
    finally:
        await blind.aclose()
        await access.client.execute_command("ACL", "DELUSER", "blind")
