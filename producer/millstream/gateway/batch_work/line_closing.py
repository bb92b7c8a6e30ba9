"""Gives a row to each line of a batch that has none when the batch is cancelled, or its time is over."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator

from millstream.batch.files.input_lines import InputLine
from millstream.errors import JobCancelled, JobError, JobExpired, NotFound, NotReady
from millstream.gateway.batch_work.finished_rows import Closing, FinishedRow, closed_row, ended_row
from millstream.gateway.batch_work.line_reader import EncodedLine, LineReader
from millstream.gateway.batch_work.line_run import CHUNK_ROWS, unwritten_rows
from millstream.gateway.batch_work.part_writer import PartWriter
from millstream.gateway.batches.batch_record import BatchRecord
from millstream.gateway.services.queue_clients import QueueClients
from millstream.wire.messages.messages import Result

WAIT_S = 10.0  # for running jobs to be stopped: over all lines


class LineClosing:
    """Jobs that have ended keep their ends; the others are cancelled."""

    def __init__(
        self, batch: BatchRecord, clients: QueueClients, reader: LineReader, parts: PartWriter
    ) -> None:
        self._batch, self._clients = batch, clients
        self._reader, self._parts = reader, parts

    async def run(self, lines: AsyncIterator[InputLine], closing: Closing) -> None:
        """Raises LeaseLost, MillstreamError."""
        await self._parts.written_beside(self._close(lines, closing))

    async def _close(self, lines: AsyncIterator[InputLine], closing: Closing) -> None:
        give_up_s = time.monotonic() + WAIT_S
        waiting: defaultdict[str, list[EncodedLine]] = defaultdict(list)
        async for row in unwritten_rows(lines, self._reader, self._parts):
            waiting[row.queue].append(row)
            if len(waiting[row.queue]) == CHUNK_ROWS:
                await self._end(row.queue, waiting.pop(row.queue), closing, give_up_s)
        for queue, rows in waiting.items():
            await self._end(queue, rows, closing, give_up_s)

    async def _end(self, queue: str, rows: list[EncodedLine], closing: Closing, give_up_s: float) -> None:
        client = self._clients[queue]
        jobs = {self._batch.own_id(row.line): row for row in rows}
        await client.cancel_many(jobs)
        ends = await client.wait_many(jobs, timeout_s=max(0.0, give_up_s - time.monotonic()))
        for own_id, end in ends.items():
            await self._parts.add(_row(jobs[own_id], own_id, end, closing), client, own_id)


def _row(row: EncodedLine, job_id: str, end: Result | JobError, closing: Closing) -> FinishedRow:
    if isinstance(end, NotReady | NotFound | JobCancelled | JobExpired):
        return closed_row(row, closing)
    return ended_row(row, job_id, end)
