"""Writes rows in parts: the object first, then one script counts its rows; only then are their jobs
forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from millstream.gateway.batches.records.batch_catalogue import WrittenLines
from millstream.gateway.batches.records.batch_lease import BatchLease
from millstream.gateway.batches.records.batch_part import BatchPart, part_name
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.batches.records.line_set import ranges_of
from millstream.gateway.batches.runner.finished_rows import FinishedRow
from millstream.gateway.files.store.object_store import MissingObject, ObjectStore
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.redis.batch_calls import PartCounts
from millstream.wire.messages.job_messages import Usage
from millstream.wire.timing import within

PART_BYTES = 8 * 1024**2
READS_AT_ONCE = 8  # of rows of equal lines: one from the cloud takes some 30 ms
YOUNGEST_S, OLDEST_S = 0.5, 30.0  # rows wait no longer than this for their part to be written …
_SHARE = 0.01  # … and in between for this share of the time until now: a day's batch has few parts


@dataclass(slots=True, eq=False)
class _PartRows:
    """Rows of one part, which are in memory until they are written at `path` of the store."""

    data: bytearray = field(default_factory=bytearray)
    path: str | None = None


class RowPlace(NamedTuple):
    """The place of one row: bytes of its part."""

    part: _PartRows
    begin: int
    end: int


@dataclass(slots=True, eq=False)
class _Held:
    """Rows that are not written yet, by the file that they belong to."""

    rows: dict[RowKind, _PartRows] = field(default_factory=lambda: defaultdict(_PartRows))
    lines: dict[RowKind, list[int]] = field(default_factory=lambda: defaultdict(list))
    jobs: dict[AsyncClient, list[str]] = field(default_factory=lambda: defaultdict(list))
    results: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    expected: int = 0
    agreed: int = 0
    bytes: int = 0

    def add(self, row: FinishedRow) -> RowPlace:
        part = self.rows[row.kind]
        begin = len(part.data)
        part.data += row.data
        self.lines[row.kind].append(row.line)
        self.results[row.result] += 1
        self.usage.update({name: getattr(row.usage, name) for name in Usage.model_fields})
        self.expected += row.agrees is not None
        self.agreed += bool(row.agrees)
        self.bytes += len(row.data)
        return RowPlace(part, begin, len(part.data))

    def counts(self) -> PartCounts:
        completed = self.results["completed"]
        tokens = {name: self.usage[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
        failed = self.results.total() - completed
        return PartCounts(completed, failed, **tokens, expected=self.expected, agreed=self.agreed)


class PartWriter:
    """`written`: the lines whose rows are committed, or will be. All that it raises leaves rows unwritten: a
    later run finds their jobs, or computes them again. A part that was lost is written again in its place, so
    that readers who have its rows get them once.
    """

    def __init__(
        self,
        batch: BatchRecord,
        written: WrittenLines,
        lease: BatchLease,
        store: ObjectStore,
        metrics: GatewayMetrics,
    ) -> None:
        self.written = written.lines
        self._parts = list(written.parts)
        self._lost = dict(written.lost)  # with the lines that have no row yet
        self._restored: dict[BatchPart, _Held] = defaultdict(_Held)
        self._batch = batch
        self._lease, self._store, self._metrics = lease, store, metrics
        self._held = self._writing = _Held()
        self._began_s = time.monotonic()
        self._one_at_a_time = asyncio.Lock()
        self._reading = asyncio.Semaphore(READS_AT_ONCE)
        self._read: tuple[RowPlace, bytes] | None = None  # the row that was read last

    @property
    def held_tokens(self) -> int:
        """Output tokens of rows that have ended and are not counted yet."""
        held = {id(one): one for one in (self._held, self._writing)}
        return sum(one.usage["output_tokens"] for one in held.values())

    def is_counted(self, line: int) -> bool:
        """True if the line's row is counted already: it is computed again, as its part was lost."""
        return any(line in lines for lines in self._lost.values())

    async def add(
        self, row: FinishedRow, client: AsyncClient | None = None, job_ids: Sequence[str] = ()
    ) -> RowPlace | None:
        """`client` and `job_ids`: jobs that are not needed any more. Returns None if the line has a row
        already. Raises LeaseLost, MillstreamError.
        """
        if row.line in self.written:
            return None
        self.written.add(row.line)
        lost = next((part for part, lines in self._lost.items() if row.line in lines), None)
        held = self._held if lost is None else self._restored[lost]
        place = held.add(row)
        if client is not None:
            held.jobs[client] += job_ids
        if lost is not None:
            await self._restore_if_whole(lost, row.line)
        elif held.bytes >= PART_BYTES:
            await self.flush()
        return place

    async def row_at(self, place: RowPlace) -> bytes | None:
        """Returns the row there; None if its part was lost. Raises StoreUnavailable."""
        part, begin, end = place
        async with self._reading:
            if part.path is None:
                return bytes(part.data[begin:end])
            if self._read is None or self._read[0] != place:
                try:
                    data = b"".join([chunk async for chunk in self._store.read(part.path, begin, end)])
                except MissingObject:
                    return None
                self._read = place, data
                return data
            return self._read[1]

    async def _restore_if_whole(self, lost: BatchPart, line: int) -> None:
        self._lost[lost].discard(line)
        if self._lost[lost]:
            return
        del self._lost[lost]
        held = self._restored.pop(lost)
        async with self._one_at_a_time:
            [text, _] = await self._put(lost.kind, held)
            other = RowKind.ERROR if lost.kind is RowKind.OUTPUT else RowKind.OUTPUT
            changed = len(held.lines[other])
            place = self._parts.index(lost)
            await self._lease.restore(place, lost.text(), text, _change(other, changed))
            self._parts[place] = BatchPart.of(text)
            if changed:
                await self._commit(PartCounts(), [await self._put(other, held)])
        await self._forget(held)

    async def flush(self) -> None:
        """Raises LeaseLost, MillstreamError."""
        async with self._one_at_a_time:
            held = self._writing = self._held
            self._held = _Held()
            if not held.results:
                return
            parts = [await self._put(kind, held) for kind in RowKind if held.lines[kind]]
            await self._commit(held.counts(), parts)
            self._writing = self._held
            self._metrics.count_rows(held.results)
            await self._forget(held)

    async def _commit(self, counts: PartCounts, parts: list[tuple[str, str]]) -> None:
        await self._lease.commit(counts, parts, behind=len(self._parts))
        self._parts += [BatchPart.of(text) for text, _ in parts]

    async def _forget(self, held: _Held) -> None:
        for client, job_ids in held.jobs.items():
            with contextlib.suppress(MillstreamError):  # they expire in time
                await client.forget_many(job_ids, keep_cached=True)

    async def _put(self, kind: RowKind, held: _Held) -> tuple[str, str]:
        name = part_name(self._batch.tenant)
        part, lines = held.rows[kind], held.lines[kind]
        data, path = bytes(part.data), f"{self._batch.folder}/{name}"
        await self._store.put(path, data)
        part.path, part.data = path, bytearray()
        return BatchPart(kind, name, len(lines), len(data)).text(), ranges_of(lines)

    async def written_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, which adds rows; all of them are committed at its end. Raises what it raises,
        LeaseLost, MillstreamError.
        """
        done = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._flush_until(done))
                await work
                done.set()  # a part that is being written is not given up
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        await self.flush()

    async def _flush_until(self, done: asyncio.Event) -> None:
        while not await within(done, self._pause_s):
            await self.flush()

    @property
    def _pause_s(self) -> float:
        return min(OLDEST_S, max(YOUNGEST_S, _SHARE * (time.monotonic() - self._began_s)))


def _change(kind: RowKind, rows: int) -> PartCounts:
    """Returns the counts of rows that are of this kind now, and were of the other."""
    more = rows if kind is RowKind.OUTPUT else -rows
    return PartCounts(completed=more, failed=-more)
