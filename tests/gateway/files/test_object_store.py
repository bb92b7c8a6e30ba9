"""The store of files: objects are whole or not there, and what goes wrong has a name."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.errors import InvalidRequest, NotFound, Unavailable
from millstream.gateway.files.store.object_store import PART_BYTES, MissingObject, ObjectStore


async def parts(*given: bytes) -> AsyncIterator[bytes]:
    for one in given:
        yield one


async def whole(store: ObjectStore, path: str, *bounds: int) -> bytes:
    return b"".join([chunk async for chunk in store.read(path, *bounds)])


async def paths(store: ObjectStore, prefix: str) -> list[str]:
    return sorted([one.path async for one in store.list(prefix)])


async def test_what_is_written_is_read(store: ObjectStore) -> None:
    data = os.urandom(PART_BYTES + 1)
    assert await store.write("files/t/a", parts(data[:100], b"", data[100:])) == len(data)
    assert await store.write("files/t/empty", parts()) == 0
    await store.put("batches/b1/0", b"0123456789")
    assert await whole(store, "files/t/a") == data
    assert await whole(store, "files/t/empty") == b""
    assert await whole(store, "batches/b1/0", 3) == b"3456789"
    assert await whole(store, "batches/b1/0", 3, 5) == b"34"
    assert await whole(store, "batches/b1/0", 3, 3) == b""
    assert await paths(store, "files") == ["files/t/a", "files/t/empty"]
    assert await paths(store, "nothing") == []
    await store.delete("files/t/a")
    await store.delete("files/t/a")
    assert await paths(store, "files") == ["files/t/empty"]


async def test_pieces_are_read_together_in_any_order(store: ObjectStore) -> None:
    data = os.urandom(200_000)
    await store.put("files/t/a", data)
    begins = [150_000, 7, 8, 199_990, 7]
    ends = [150_100, 70_000, 9, 200_000, 8]
    found = await store.read_ranges("files/t/a", begins, ends)
    assert found == [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    with pytest.raises(MissingObject):
        await store.read_ranges("files/t/b", begins, ends)


async def test_an_object_is_there_whole_or_not_at_all(store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (2 * PART_BYTES)
        assert await paths(store, "files") == ["files/old"]
        assert await whole(store, "files/old") == b"old"
        raise KeyError("the client has gone")

    await store.put("files/old", b"old")
    for path in ("files/new", "files/old"):
        with pytest.raises(KeyError):
            await store.write(path, broken())
    assert await whole(store, "files/old") == b"old"
    assert store.folder is not None
    assert [file.name for file in store.folder.rglob("*") if file.is_file()] == ["old"]


async def test_one_of_many_creates(store: ObjectStore) -> None:
    assert [await store.create("marker", data) for data in (b"1", b"2")] == [True, False]
    assert await whole(store, "marker") == b"1"


async def test_errors_have_names(store: ObjectStore, tmp_path: Path) -> None:
    for call in (whole(store, "gone"), whole(store, "gone", 1, 2)):
        with pytest.raises(NotFound, match="gone: no such object"):
            await call
    (tmp_path / "file").touch()
    blocked = ObjectStore(f"file://{tmp_path}/file/below")
    for call in (blocked.put("a", b""), blocked.write("a", parts(b"x")), paths(blocked, "a")):
        with pytest.raises(Unavailable, match="cannot be used"):
            await call


def test_an_url_names_a_folder_or_a_cloud(tmp_path: Path) -> None:
    for url in ("", "file://", "memory:///", "https://example.org/a", "ftp://a/b"):
        with pytest.raises(InvalidRequest, match="--files-url"):
            ObjectStore(url)
    assert ObjectStore(f"file://{tmp_path}").folder == ObjectStore(str(tmp_path)).folder == tmp_path
    assert ObjectStore("s3://bucket/below").folder is None
