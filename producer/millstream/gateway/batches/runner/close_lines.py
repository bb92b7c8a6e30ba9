"""Gives a row to each line of a batch that has none when the batch is cancelled, or its time is over."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import LineEnds
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.run.line_run import CHUNK_ROWS
from millstream.client.session.ended_job import EndedJob
from millstream.errors import JobError
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.runner.finished_rows import CloseReason, FinishedRow, closed_row, row_of
from millstream.gateway.batches.runner.line_reader import LineReader, unwritten_rows
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.cpu_executor import CpuExecutor
from millstream.gateway.queues.queue_clients import QueueClients
from millstream.wire.messages.job_messages import State

WAIT_S = 10.0  # for running jobs to be stopped: over all lines
_STOPPED = (State.CANCELLED, State.EXPIRED)


class LineCloser:
    """Jobs that have ended keep their ends; the others are cancelled."""

    def __init__(
        self,
        batch: BatchRecord,
        clients: QueueClients,
        reader: LineReader,
        parts: PartWriter,
        executor: CpuExecutor,
    ) -> None:
        self._batch, self._clients = batch, clients
        self._reader, self._parts, self._executor = reader, parts, executor

    async def run(self, lines: AsyncIterator[InputLine], closing: CloseReason) -> None:
        """Raises LeaseLost, MillstreamError."""
        await self._parts.written_beside(self._close(lines, closing))

    async def _close(self, lines: AsyncIterator[InputLine], closing: CloseReason) -> None:
        give_up_s = time.monotonic() + WAIT_S
        waiting: defaultdict[str, list[BatchLine]] = defaultdict(list)
        async for row in unwritten_rows(lines, self._reader, self._parts):
            waiting[row.queue].append(replace(row, requests=(), encoded=()))  # with images, megabytes
            if len(waiting[row.queue]) == CHUNK_ROWS:
                await self._end(row.queue, waiting.pop(row.queue), closing, give_up_s)
        for queue, rows in waiting.items():
            await self._end(queue, rows, closing, give_up_s)

    async def _end(self, queue: str, rows: list[BatchLine], closing: CloseReason, give_up_s: float) -> None:
        client = self._clients[queue]
        jobs = {own_id: row for row in rows for own_id in self._batch.own_ids(row.line, row.prompts)}
        lines: LineEnds[EndedJob | JobError] = LineEnds(jobs)
        await client.cancel_many(jobs)
        timeout_s = max(0.0, give_up_s - time.monotonic())
        async with aclosing(client.ended(jobs, timeout_s)) as ended:
            async for own_id, end in ended:
                line = lines.end(own_id, end)
                if not line.left:
                    row = await self._row(line.row, line.ends, closing)
                    await self._parts.add(row, client, line.ids)

    async def _row(
        self, row: BatchLine, ends: Sequence[EndedJob | JobError], closing: CloseReason
    ) -> FinishedRow:
        ended = [end for end in ends if isinstance(end, EndedJob) and end.record.state not in _STOPPED]
        failed = any(end.record.state is State.FAILED for end in ended)
        if not failed and len(ended) < len(ends):
            return closed_row(row, closing)
        return await row_of(row, ends, self._executor)
