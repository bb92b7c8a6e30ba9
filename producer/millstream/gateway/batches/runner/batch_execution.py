"""Carries one batch out, from whatever status it has to its end. All of it may be repeated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from millstream.batch.files.input_lines import InputLine
from millstream.batch.rows.faults import LineFault
from millstream.client.session.run_while import beside
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_lease import BatchInterrupted, BatchLease
from millstream.gateway.batches.records.batch_record import BatchRecord, BatchStatus
from millstream.gateway.batches.runner.close_lines import LineClosing
from millstream.gateway.batches.runner.finished_rows import Closing
from millstream.gateway.batches.runner.input_stream import input_lines
from millstream.gateway.batches.runner.line_reader import LineReader
from millstream.gateway.batches.runner.line_run import LineRun
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.batches.runner.result_files import ResultFiles
from millstream.gateway.batches.runner.validation import Verdict, validate
from millstream.gateway.context import Services
from millstream.gateway.files.store.object_store import ObjectMissing


class InputGone(Exception):
    """The input file was deleted, or has expired."""


class BatchExecution:
    """By who holds its lease, as long as it does."""

    def __init__(
        self, services: Services, catalogue: BatchCatalogue, batch: BatchRecord, lease: BatchLease
    ) -> None:
        self._services, self._catalogue = services, catalogue
        self._batch, self._lease = batch, lease
        self._results = ResultFiles(services.store, services.files)

    async def run(self) -> None:
        """To the end of the batch. Raises LeaseLost, MillstreamError."""
        await beside(self._lease.keep(), self._carry_out())

    async def _carry_out(self) -> None:
        try:
            await self._to_its_end()
        except InputGone:
            await self._end_without_input()
        await self._results.delete_parts(self._batch)

    async def _to_its_end(self) -> None:
        interrupted = False
        try:
            await beside(self._lease.interruption(), self._answer_all())
        except BatchInterrupted:
            interrupted = True
        await self._reload()
        if not self._batch.status.has_ended:
            await self._conclude(interrupted)

    async def _answer_all(self) -> None:
        if self._batch.status is BatchStatus.VALIDATING:
            await self._validate()
        if self._batch.status is BatchStatus.IN_PROGRESS:
            reader, clients, executor = self._reader(), self._services.clients, self._services.executor
            run = LineRun(self._batch, self._lease, clients, reader, await self._parts(), executor)
            await run.run(self._lines())

    async def _validate(self) -> None:
        reader = self._reader()
        verdict = await validate(self._lines(), reader, self._services.settings.max_batch_lines)
        if verdict.errors:
            await self._fail(verdict)
        else:
            fields = {"total": str(verdict.total), "models": json.dumps(reader.models)}
            await self._lease.move(BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, **fields)
        await self._reload()

    async def _fail(self, verdict: Verdict) -> None:
        fields = {"total": str(verdict.total), "errors": json.dumps(verdict.errors)}
        await self._lease.move(BatchStatus.VALIDATING, BatchStatus.FAILED, **fields)

    async def _conclude(self, interrupted: bool) -> None:
        """The batch has been answered, or is to end without that."""
        batch = self._batch
        if batch.status is BatchStatus.CANCELLING or interrupted:
            closing = Closing.CANCELLED if batch.status is BatchStatus.CANCELLING else Closing.EXPIRED
            if batch.is_validated:
                clients, executor = self._services.clients, self._services.executor
                rest = LineClosing(batch, clients, self._reader(), await self._parts(), executor)
                await rest.run(self._lines(), closing)
            elif closing is Closing.EXPIRED:
                await self._lease.move(BatchStatus.VALIDATING, BatchStatus.EXPIRED)
        if batch.status is BatchStatus.IN_PROGRESS:
            ends = BatchStatus.EXPIRED if interrupted else BatchStatus.COMPLETED
            await self._lease.move(BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, ends_as=ends)
        batch = await self._reload()
        if not batch.status.has_ended:
            await self._finalize(batch)

    async def _finalize(self, batch: BatchRecord) -> None:
        """A batch that was cancelled until now is that; later it is too late."""
        ends = BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else batch.ends_as
        named = await self._results.make(batch, await self._catalogue.parts(batch))
        await self._lease.move(batch.status, ends, **named)

    async def _end_without_input(self) -> None:
        """What was answered is kept; what the other lines were cannot be known any more."""
        fault = LineFault("input_file_gone", "the input file was deleted before the batch had ended")
        verdict = Verdict(self._batch.total)
        verdict.refuse(None, fault)
        named = await self._results.make(self._batch, await self._catalogue.parts(self._batch))
        batch = await self._reload()
        fields = {"errors": json.dumps(verdict.errors)} | named
        await self._lease.move(batch.status, BatchStatus.FAILED, **fields)

    async def _reload(self) -> BatchRecord:
        found = await self._catalogue.find(self._batch.tenant, self._batch.id)
        if found is not None:  # it has not been deleted by hand
            self._batch = found
        return self._batch

    async def _parts(self) -> PartWriter:
        written = await self._catalogue.written_lines(self._batch)
        return PartWriter(self._batch, written, self._lease, self._services.store, self._services.metrics)

    def _reader(self) -> LineReader:
        return LineReader(self._batch, self._services.directory, self._services.executor)

    async def _lines(self) -> AsyncIterator[InputLine]:
        """Raises InputGone."""
        record = await self._services.files.find(self._batch.tenant, self._batch.input_file_id)
        if record is None:
            raise InputGone
        try:
            async for line in input_lines(self._services.store.read(record.path)):
                yield line
        except ObjectMissing:
            raise InputGone from None
