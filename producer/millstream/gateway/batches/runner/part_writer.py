"""Writes rows in parts: the object first, then one script counts its rows; only then are their jobs
forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from millstream.gateway.batches.records.batch_catalogue import WrittenLines
from millstream.gateway.batches.records.batch_lease import BatchLease
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.batches.records.line_set import ranges_of
from millstream.gateway.batches.runner.finished_rows import FinishedRow
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.redis.batch_calls import PartCounts
from millstream.wire.messages.job_messages import Usage
from millstream.wire.timing import within

PART_BYTES = 8 * 1024**2
YOUNGEST_S, OLDEST_S = 0.5, 30.0  # rows wait no longer than this for their part to be written …
_SHARE = 0.01  # … and in between for this share of the time until now: a day's batch has few parts


@dataclass(slots=True, eq=False)
class _Held:
    """Rows that are not written yet, by the file that they belong to."""

    data: dict[RowKind, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    lines: dict[RowKind, list[int]] = field(default_factory=lambda: defaultdict(list))
    jobs: dict[AsyncClient, list[str]] = field(default_factory=lambda: defaultdict(list))
    results: Counter[str] = field(default_factory=Counter)
    usage: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    def add(self, row: FinishedRow) -> None:
        self.data[row.kind] += row.data
        self.lines[row.kind].append(row.line)
        self.results[row.result] += 1
        self.usage.update({name: getattr(row.usage, name) for name in Usage.model_fields})
        self.bytes += len(row.data)

    def counts(self) -> PartCounts:
        completed = self.results["completed"]
        tokens = {name: self.usage[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
        return PartCounts(completed, self.results.total() - completed, **tokens)


class PartWriter:
    """`written`: the lines whose rows are committed, or will be. All that it raises leaves rows unwritten: a
    later run finds their jobs, or computes them again.
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
        self._parts = written.parts
        self._batch = batch
        self._lease, self._store, self._metrics = lease, store, metrics
        self._held = _Held()
        self._began_s = time.monotonic()
        self._one_at_a_time = asyncio.Lock()

    async def add(self, row: FinishedRow, client: AsyncClient | None = None, job_id: str = "") -> None:
        """`client` and `job_id`: the job that is not needed any more. Raises LeaseLost, MillstreamError."""
        if row.line in self.written:
            return
        self.written.add(row.line)
        self._held.add(row)
        if client is not None:
            self._held.jobs[client].append(job_id)
        if self._held.bytes >= PART_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Raises LeaseLost, MillstreamError."""
        async with self._one_at_a_time:
            held, self._held = self._held, _Held()
            if not held.results:
                return
            parts = [await self._put(kind, held) for kind in RowKind if held.data[kind]]
            await self._lease.commit(held.counts(), parts, behind=self._parts)
            self._parts += len(parts)
            self._metrics.count_rows(held.results)
            for client, job_ids in held.jobs.items():
                with contextlib.suppress(MillstreamError):  # they expire in time
                    await client.forget_many(job_ids, keep_cached=True)

    async def _put(self, kind: RowKind, held: _Held) -> tuple[str, str]:
        name = uuid4().hex  # of no other part, of this gateway or another
        data, lines = bytes(held.data[kind]), held.lines[kind]
        await self._store.put(f"{self._batch.folder}/{name}", data)
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
