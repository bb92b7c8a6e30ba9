"""Answers the lines of a batch that have no row yet, and counts what is under way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import NoReturn

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.run.line_run import LineRun
from millstream.batch.run.window import Window
from millstream.client.session.ended_job import EndedJob
from millstream.client.session.run_while import run_while
from millstream.errors import JobError, MillstreamError
from millstream.gateway.batches.records.batch_lease import BatchLease
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.runner.finished_rows import faulty_row
from millstream.gateway.batches.runner.line_reader import LineReader
from millstream.gateway.batches.runner.live_tokens import LiveTokens
from millstream.gateway.batches.runner.part_writer import PartWriter, RowPlace
from millstream.gateway.batches.runner.store_ledger import StoreLedger
from millstream.gateway.cpu_executor import CpuExecutor
from millstream.gateway.queues.queue_clients import QueueClient, QueueClients

WINDOW_JOBS = 2000
WINDOW_BYTES = 16 * 1024**2  # of input lines under way
MOST_ANSWERS = 20_000  # that are remembered for equal lines
COUNT_TOKENS_S = 3.0  # between two looks at the rows under way
_AT_ONCE = 8  # lines, until other tasks of the gateway have their turn


class BatchLineRun:
    """One pass over the input."""

    def __init__(
        self,
        batch: BatchRecord,
        lease: BatchLease,
        clients: QueueClients,
        reader: LineReader,
        parts: PartWriter,
        executor: CpuExecutor,
    ) -> None:
        self._lease, self._reader, self._parts = lease, reader, parts
        self._live = LiveTokens()
        self._ledger = StoreLedger(batch, lease, clients, parts, executor, self._live)
        self._lines: LineRun[QueueClient, EndedJob | JobError, RowPlace] = LineRun(
            self._ledger, Window(WINDOW_JOBS, WINDOW_BYTES), most_answers=MOST_ANSWERS
        )

    @property
    def stalled_s(self) -> float:
        """Returns for how long its queues have taken no line and answered none."""
        return time.monotonic() - self._ledger.progress_s

    @property
    def answered(self) -> int:
        """Returns the number of rows that were written in this run."""
        return self._ledger.answered

    async def run(self, lines: AsyncIterator[InputLine]) -> None:
        """All rows are committed at its end. Raises LeaseLost, BatchInterrupted, MillstreamError."""
        rows = unwritten_rows(lines, self._reader, self._parts)
        try:
            await self._parts.written_beside(run_while(self._count_tokens(), self._lines.run(rows)))
        finally:
            self._lease.live_tokens = 0

    async def _count_tokens(self) -> NoReturn:
        """For those who look at the batch: the lease writes the number when it is renewed."""
        while True:
            await asyncio.sleep(COUNT_TOKENS_S)
            with contextlib.suppress(MillstreamError):  # again soon
                await self._live.look()
            self._lease.live_tokens = self._live.total + self._parts.held_tokens


async def unwritten_rows(
    lines: AsyncIterator[InputLine], reader: LineReader, parts: PartWriter
) -> AsyncIterator[BatchLine]:
    """Those lines that have no row. Raises LeaseLost, MillstreamError."""
    async for line in lines:
        if line.number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        if line.number in parts.written:
            continue
        try:
            row = await reader.read(line)
        except LineFault as fault:
            await parts.add(faulty_row(line.number, fault, line.data))
            continue
        yield row
