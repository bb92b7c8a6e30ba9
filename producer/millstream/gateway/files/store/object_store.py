"""Stores objects in a local folder or in the cloud, by obstore. In both, an object is there whole or not at
all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url

from millstream.errors import InvalidRequest, JobError, NotFound, Unavailable
from millstream.logs.failure_log import FailureLog

PART_BYTES = 8 * 1024**2  # S3 takes 10,000 parts: 80 GB in one object
PARTS_UNDER_WAY = 3
READ_BYTES = 256 * 1024  # least of a chunk that is read
_CLOSE_BYTES = 64 * 1024  # between two pieces that are read as one
_CLOUDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_UNFINISHED = "*#[0-9]*"  # obstore's names of files that are being written
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}


class MissingObject(NotFound):
    """There is no object at that path."""

    def __init__(self, path: str) -> None:
        JobError.__init__(self, path, "no such object in the store of files")


class StoreUnavailable(Unavailable):
    """The store of files refused, or did not answer. The log has it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    path: str
    bytes: int
    modified_s: float


class ObjectStore:
    """Paths are relative to the URL's; they have no leading `/`. Connects when first used. All methods raise
    StoreUnavailable.
    """

    def __init__(self, url: str) -> None:
        """`url`: a folder, or s3://…, gs://…, az://…, whose credentials are in the usual variables of the
        environment. Raises InvalidRequest.
        """
        self.url = url
        self.folder = _folder(url)
        self._opened: Any = None
        self._expected: Path | None = None
        self._outage = FailureLog("store of files cannot be used", "store of files can be used again")

    def expect(self, mark: str) -> None:
        """From now on a folder without this file is not used: what was mounted there is gone."""
        self._expected = self.folder / mark if self.folder is not None else None

    async def write(self, path: str, chunks: AsyncIterator[bytes]) -> int:
        """Writes an object; returns its size in bytes. Holds a few parts in memory. An error of `chunks`
        passes, and leaves no object.
        """
        count = 0
        self._check_folder()
        with self._reached(path):
            writer = obstore.open_writer_async(
                self._store, path, buffer_size=PART_BYTES, max_concurrency=PARTS_UNDER_WAY
            )
        async for chunk in chunks:  # a writer that is not closed is dropped, with all that it has
            self._check_folder()
            with self._reached(path):
                await writer.write(chunk)
            count += len(chunk)
        self._check_folder()
        with self._reached(path):
            await writer.close()
        return count

    async def put(self, path: str, data: bytes) -> None:
        self._check_folder()
        with self._reached(path):
            await obstore.put_async(self._store, path, data)

    async def create(self, path: str, data: bytes) -> bool:
        """Writes an object and returns True; if one is there, it stays as it is: False."""
        try:
            with self._reached(path):
                await obstore.put_async(self._store, path, data, mode="create", use_multipart=False)
        except _Exists:
            return False
        return True

    async def read(self, path: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yields the bytes from `start` up to `end`, which is not included. Raises MissingObject."""
        if end is not None and end <= start:
            return
        options: Any = {}
        if end is not None:
            options = {"range": (start, end)}
        elif start:
            options = {"range": {"offset": start}}
        with self._reached(path):
            found = await obstore.get_async(self._store, path, options=options)
            stream = aiter(found.stream(READ_BYTES))
        while True:
            with self._reached(path):
                chunk = await anext(stream, None)
            if chunk is None:
                return
            yield bytes(chunk)

    async def read_ranges(self, path: str, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Returns pieces of an object, in one call for all of them; those that lie close together are one
        request to the cloud. Raises MissingObject.
        """
        with self._reached(path):
            found = await obstore.get_ranges_async(
                self._store, path, starts=starts, ends=ends, coalesce=_CLOSE_BYTES
            )
            return list(map(bytes, found))

    async def delete(self, path: str) -> None:
        """Deletes the object, if there is one."""
        with contextlib.suppress(MissingObject), self._reached(path):
            await obstore.delete_async(self._store, path)

    async def list(self, prefix: str) -> AsyncIterator[StoredObject]:
        """Yields all objects below the folder `prefix`, in no order."""
        with self._reached(prefix):
            pages = aiter(obstore.list(self._store, prefix))
        while True:
            with self._reached(prefix):
                page = await anext(pages, None)
            if page is None:
                return
            for one in page:
                yield StoredObject(one["path"], one["size"], one["last_modified"].timestamp())

    async def delete_unfinished(self, age_s: float) -> int:
        """Deletes files that killed writers left in a folder; returns how many. In the cloud such parts are
        nobody's objects, and a rule of the bucket deletes them.
        """
        if self.folder is None:
            return 0
        with self._reached(_UNFINISHED):
            return await asyncio.to_thread(_delete_unfinished, self.folder, time.time() - age_s)

    def _check_folder(self) -> None:
        if self._expected is not None and not self._expected.is_file():
            message = (
                f"the store of files {self.url} cannot be used: its mark, {self._expected.name}, is gone"
            )
            raise self._unusable(message)

    @property
    def _store(self) -> Any:
        if self._opened is None:
            if self.folder is not None:
                self._opened = LocalStore(self.folder, mkdir=True)
            else:
                self._opened = from_url(self.url, retry_config=_RETRIES)
        return self._opened

    @contextlib.contextmanager
    def _reached(self, path: str) -> Iterator[None]:
        try:
            yield
            self._outage.worked()
        except FileNotFoundError:
            if self._expected is None or path != self._expected.name:
                self._check_folder()  # if all of it is gone, nothing is said of one object
            raise MissingObject(path) from None
        except AlreadyExistsError:
            raise _Exists from None
        except (BaseError, OSError, ValueError) as error:
            [problem, *_] = str(error).splitlines() or [""]
            message = f"the store of files {self.url} cannot be used ({type(error).__name__}): {problem:.300}"
            raise self._unusable(message) from error

    def _unusable(self, message: str) -> StoreUnavailable:
        self._outage.failed(error=message)
        return StoreUnavailable(message)


class _Exists(Exception):
    pass


def _delete_unfinished(folder: Path, before_s: float) -> int:
    found = [file for file in folder.rglob(_UNFINISHED) if file.stat().st_mtime < before_s]
    for file in found:
        file.unlink(missing_ok=True)
    return len(found)


def _folder(url: str) -> Path | None:
    """Returns the URL's local folder; None if it is in the cloud. Raises InvalidRequest."""
    kind = urlsplit(url).scheme
    if kind in _CLOUDS:
        return None
    if kind not in ("", "file"):
        raise InvalidRequest("--files-url", url, f"give a folder, or a URL of {', '.join(_CLOUDS)}")
    folder = urlsplit(url).path if kind == "file" else url
    if not folder:
        raise InvalidRequest("--files-url", url, "name a folder")
    return Path(folder).absolute()
