"""Makes a batch's output and error file out of its parts. May be repeated: it makes the same files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.file_record import OUTPUT_PURPOSE, FileRecord
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.files.store.store_marker import StoreMarker


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """All methods raise StoreUnavailable, Unavailable."""

    store: ObjectStore
    files: FileCatalogue
    marker: StoreMarker

    async def make(self, batch: BatchRecord, parts: Sequence[BatchPart]) -> dict[str, str]:
        """The fields of the batch's record that name them; a file without rows is not made."""
        named = {}
        for kind in RowKind:
            own = [part for part in parts if part.kind is kind and part.rows]
            if own:
                named[f"{kind}_file_id"] = await self._make_one(batch, kind, own)
        return named

    async def _make_one(self, batch: BatchRecord, kind: RowKind, parts: Sequence[BatchPart]) -> str:
        record = FileRecord.new(
            batch.tenant,
            id=batch.file_id(kind),
            filename=f"{batch.id}_{kind}.jsonl",
            purpose=OUTPUT_PURPOSE,
            bytes=sum(part.bytes for part in parts),
            lasts_s=batch.output_lasts_s or None,
        )
        await self.store.write(record.path, self._joined(batch, parts))
        await self.files.add(record)
        return record.id

    async def _joined(self, batch: BatchRecord, parts: Sequence[BatchPart]) -> AsyncIterator[bytes]:
        for part in parts:
            async for chunk in self.store.read(f"{batch.folder}/{part.name}"):
                yield chunk

    async def lost(self, batch: BatchRecord, parts: Sequence[BatchPart]) -> set[BatchPart]:
        """Returns the parts whose objects are gone from the store. Raises StoreMismatch if all of it is."""
        there = {one.path async for one in self.store.list(batch.folder)} if parts else set()
        lost = {part for part in parts if part.rows and f"{batch.folder}/{part.name}" not in there}
        if lost:
            await self.marker.confirm(now=True)
        return lost
