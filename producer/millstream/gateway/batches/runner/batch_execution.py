"""Carries one batch out, from whatever status it has to its end. All of it may be repeated."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Collection
from functools import partial

from millstream.batch.order.line_order import LineOrder
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.run.line_run import LineRun
from millstream.batch.run.window import Window
from millstream.client.session.run_while import run_while
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_lease import BatchInterrupted, BatchLease
from millstream.gateway.batches.records.batch_record import BatchRecord, BatchStatus
from millstream.gateway.batches.runner.close_lines import LineCloser
from millstream.gateway.batches.runner.finished_rows import CloseReason
from millstream.gateway.batches.runner.input_stream import input_lines, lines_at
from millstream.gateway.batches.runner.line_reader import LineReader, unwritten_rows
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.batches.runner.result_files import ResultFiles
from millstream.gateway.batches.runner.store_ledger import StoreLedger
from millstream.gateway.batches.runner.validation import Verdict, find_order, validate
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.file_record import FileRecord
from millstream.gateway.files.store.object_store import MissingObject, StoreUnavailable
from millstream.gateway.files.store.store_marker import StoreMismatch

WINDOW_JOBS = 2000
WINDOW_BYTES = 16 * 1024**2  # of input lines under way
MOST_ANSWERS = 20_000  # that are remembered for equal lines


class InputGone(Exception):
    """The input file was deleted, or has expired."""


class BatchExecution:
    """Runs one batch. Only the holder of its lease may call it."""

    def __init__(
        self, gateway: GatewayContext, catalogue: BatchCatalogue, batch: BatchRecord, lease: BatchLease
    ) -> None:
        self._gateway, self._catalogue = gateway, catalogue
        self._batch, self._lease = batch, lease
        self._results = ResultFiles(gateway.store, gateway.files, gateway.marker)
        self._ledger: StoreLedger | None = None
        self._order: LineOrder | None = None  # of its lines, as the validation has found it
        self._resumed = batch.status is not BatchStatus.VALIDATING

    @property
    def stalled_s(self) -> float:
        """Returns for how long the queues of its lines have taken none and answered none."""
        return self._ledger.stalled_s if self._ledger is not None else 0.0

    @property
    def queues(self) -> Collection[str]:
        return (self._batch.models or {}).values()

    @property
    def answered(self) -> int:
        """Returns how many lines were answered in this run."""
        return self._ledger.answered if self._ledger is not None else 0

    async def run(self) -> None:
        """Runs the batch to its end. Raises LeaseLost, MillstreamError."""
        await run_while(self._lease.renew(), self._carry_out())

    async def _carry_out(self) -> None:
        try:
            await self._to_its_end()
        except InputGone:
            await self._fail_as("input_file_gone", "the input file was deleted before the batch had ended")
        except (StoreUnavailable, StoreMismatch) as error:
            if not self._batch.is_given_up(time.time()):
                raise
            message = (
                f"the store of files could not be used for a day after the batch's time was over: {error}"
            )
            await self._fail_as("store_unavailable", message)

    async def _to_its_end(self) -> None:
        interrupted = False
        try:
            await run_while(self._lease.interruption(), self._answer_all())
        except BatchInterrupted:
            interrupted = True
        await self._reload()
        if not self._batch.status.has_ended:
            await self._conclude(interrupted)

    async def _answer_all(self) -> None:
        if self._batch.status is BatchStatus.VALIDATING:
            await self._validate()
        if self._batch.status is BatchStatus.IN_PROGRESS:
            await self._answer_lines(await self._parts())
        elif self._batch.status is BatchStatus.FINALIZING:
            committed = await self._catalogue.parts(self._batch)
            if await self._results.lost(self._batch, committed):
                await self._answer_lines(await self._parts())

    async def _answer_lines(self, parts: PartWriter) -> None:
        gateway, lease = self._gateway, self._lease
        if not self._batch.in_order:
            self._order = self._order or await find_order(self._lines(), self._reader())
        self._ledger = StoreLedger(
            self._batch, lease, gateway.clients, parts, gateway.executor, resumed=self._resumed
        )
        run = LineRun(self._ledger, Window(WINDOW_JOBS, WINDOW_BYTES), most_answers=MOST_ANSWERS)
        rows = unwritten_rows(self._ordered_lines(self._order, parts), self._reader(), parts)
        try:
            await parts.written_beside(run_while(self._ledger.count_tokens(), run.run(rows)))
        finally:
            lease.live_tokens = 0
        self._ledger = None

    async def _validate(self) -> None:
        reader = self._reader(finds_order=not self._batch.in_order)
        verdict = await validate(self._lines(), reader, self._gateway.settings.max_batch_lines)
        if verdict.errors:
            await self._fail(verdict)
        else:
            fields = {"total": str(verdict.total), "models": json.dumps(reader.models)}
            if (order := verdict.order) is not None:
                self._order = order
                fields |= {"groups": str(order.groups), "shared_tokens": str(order.shared_tokens)}
            await self._lease.move(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, **fields)
        await self._reload()

    async def _fail(self, verdict: Verdict) -> None:
        fields = {"total": str(verdict.total), "errors": json.dumps(verdict.errors)}
        await self._lease.move(BatchStatus.VALIDATING, BatchStatus.FAILED, **fields)

    async def _conclude(self, interrupted: bool) -> None:
        """Ends a batch that was answered or cancelled, or has expired."""
        batch = self._batch
        if batch.status is BatchStatus.CANCELLING or interrupted:
            closing = CloseReason.CANCELLED if batch.status is BatchStatus.CANCELLING else CloseReason.EXPIRED
            if batch.is_validated:
                clients, executor = self._gateway.clients, self._gateway.executor
                rest = LineCloser(batch, clients, self._reader(), await self._parts(), executor)
                await rest.run(self._lines(), closing)
            elif closing is CloseReason.EXPIRED:
                await self._lease.move(BatchStatus.VALIDATING, BatchStatus.EXPIRED)
        if batch.status is BatchStatus.IN_PROGRESS:
            ends = BatchStatus.EXPIRED if interrupted else BatchStatus.COMPLETED
            await self._lease.move(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, ends_as=ends)
        batch = await self._reload()
        if not batch.status.has_ended:
            await self._finalize(batch)

    async def _finalize(self, batch: BatchRecord) -> None:
        """Makes the result files and sets the last status. A cancellation counts until now, not later."""
        ends = BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else batch.ends_as
        named = await self._results.make(batch, await self._catalogue.parts(batch))
        await self._lease.move(batch.status, ends, **named)

    async def _fail_as(self, code: str, message: str) -> None:
        """Fails the batch and keeps the answers that are there; its other lines cannot be known any more."""
        verdict = Verdict(self._batch.total)
        verdict.refuse(None, LineFault(code, message))
        named: dict[str, str] = {}
        with contextlib.suppress(StoreUnavailable, StoreMismatch):
            parts = await self._catalogue.parts(self._batch)
            lost = await self._results.lost(self._batch, parts)
            named = await self._results.make(self._batch, [part for part in parts if part not in lost])
        batch = await self._reload()
        fields = {"errors": json.dumps(verdict.errors)} | named
        await self._lease.move(batch.status, BatchStatus.FAILED, **fields)

    async def _reload(self) -> BatchRecord:
        found = await self._catalogue.find(self._batch.tenant, self._batch.id)
        if found is not None:  # it has not been deleted by hand
            self._batch = found
        return self._batch

    async def _parts(self) -> PartWriter:
        """Raises as `_lines`: whoever adds rows needs the input."""
        parts = await self._catalogue.parts(self._batch)
        lost = await self._results.lost(self._batch, parts)
        async with self._input() as record:
            most = record.bytes + 1  # lines, if all but the last are empty: numbers count blank ones, too
        written = await self._catalogue.written_lines(self._batch, parts, lost, most)
        return PartWriter(self._batch, written, self._lease, self._gateway.store, self._gateway.metrics)

    def _reader(self, *, finds_order: bool = False) -> LineReader:
        directory, executor = self._gateway.directory, self._gateway.executor
        return LineReader(self._batch, directory, executor, finds_order=finds_order)

    async def _lines(self) -> AsyncIterator[InputLine]:
        """Yields the lines of the input. Raises InputGone, StoreMismatch if all of the store is gone."""
        async with self._input() as record:
            async for line in input_lines(self._gateway.store.read(record.path)):
                yield line

    async def _ordered_lines(self, order: LineOrder | None, parts: PartWriter) -> AsyncIterator[InputLine]:
        """Yields lines as they are sent: those that have no row, unless all are read in the file's order."""
        if order is None or not order.moved:
            async for line in self._lines():
                yield line
            return
        async with self._input() as record:
            read = partial(self._gateway.store.read_ranges, record.path)
            spans = (
                (number, place, record.bytes if end is None else end)
                for number, place, end in order.lines()
                if number not in parts.written
            )
            async for line in lines_at(spans, read):
                yield line

    @contextlib.asynccontextmanager
    async def _input(self) -> AsyncIterator[FileRecord]:
        """The input's record; raises as `_lines` if it is gone, or goes meanwhile."""
        record = await self._gateway.files.find(self._batch.tenant, self._batch.input_file_id)
        if record is None:
            raise InputGone
        try:
            yield record
        except MissingObject:
            await self._gateway.marker.confirm(now=True)
            raise InputGone from None
