"""The rows of a batch in the order in which they were committed: of a running one from its parts, of an
ended one from its two files, each of which is its parts one after the other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.files.store.file_record import object_path
from millstream.gateway.files.store.object_store import MissingObject, ObjectStore

LOOK_S = 0.5  # for new parts


class ResultRows:
    """Iterated once."""

    def __init__(self, store: ObjectStore, catalogue: BatchCatalogue, batch: BatchRecord) -> None:
        self._store, self._catalogue, self._batch = store, catalogue, batch

    async def behind(self, count: int) -> AsyncIterator[list[bytes]]:
        """All rows but the first `count`, without the ends of their lines, until the batch ends. An empty
        list comes when there is nothing new. Raises MissingObject if its files were deleted, Unavailable.
        """
        place, before, offsets = 0, 0, Counter[str]()
        while True:
            has_ended = await self._has_ended()  # before the parts: then these are all
            for part in await self._catalogue.parts(self._batch, place):
                if before + part.rows > count:
                    async for rows in self._rows(part, offsets[part.kind], max(0, count - before)):
                        yield rows
                place, before = place + 1, before + part.rows
                offsets[part.kind] += part.bytes
            if has_ended:
                return
            yield []
            await asyncio.sleep(LOOK_S)

    async def _has_ended(self) -> bool:
        found = await self._catalogue.find(self._batch.tenant, self._batch.id)
        return found is None or found.status.has_ended

    async def _rows(self, part: BatchPart, offset: int, skipped: int) -> AsyncIterator[list[bytes]]:
        """The part's rows without the first ones. `offset`: where the part is in its file."""
        held = b""
        async for chunk in self._chunks(part, offset):
            *rows, held = (held + chunk).split(b"\n")
            skipped, rows = max(0, skipped - len(rows)), rows[skipped:]
            if rows:
                yield rows

    async def _chunks(self, part: BatchPart, offset: int) -> AsyncIterator[bytes]:
        begun = False
        try:
            async for chunk in self._store.read(f"{self._batch.folder}/{part.name}"):
                begun = True
                yield chunk
        except MissingObject:
            assert not begun, "an object is there whole"
            path = object_path(self._batch.tenant, self._batch.file_id(part.kind))
            async for chunk in self._store.read(path, offset, offset + part.bytes):
                yield chunk
