"""Answers the lines of a batch that have no row yet: a window of jobs through their queues."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NoReturn

from millstream.batch.files.input_lines import InputLine
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_ends import LineEnds, LineJobs, cancel_rest, outcomes_by_row, refusal_of
from millstream.batch.run.window import Window
from millstream.client.session.ended_job import EndedJob
from millstream.client.session.run_while import run_while
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import Outcome, Submitted
from millstream.errors import (
    AccessDenied,
    Conflict,
    JobError,
    MillstreamError,
    NotFound,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.gateway.batches.records.batch_lease import BatchInterrupted, BatchLease
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.runner.finished_rows import faulty_row, refused_row, row_of
from millstream.gateway.batches.runner.line_reader import EncodedLine, LineReader
from millstream.gateway.batches.runner.live_tokens import LiveTokens
from millstream.gateway.batches.runner.part_writer import PartWriter
from millstream.gateway.cpu_executor import CpuExecutor
from millstream.gateway.queues.queue_clients import QueueClient, QueueClients
from millstream.wire.messages.job_messages import State

WINDOW_JOBS = 2000
WINDOW_BYTES = 16 * 1024**2  # of input lines under way
CHUNK_ROWS = 256  # sent in one round trip, waited for together
MAX_ROUNDS = 5  # submissions of a job that the server keeps losing
ROOM_S = 60.0  # one wait for room in the queue, repeated without limit
COUNT_TOKENS_S = 3.0  # between two looks at the rows under way
AGAIN_S = 2.0  # until rows are sent again that nobody takes now
_AT_ONCE = 8  # lines, until other tasks of the gateway have their turn


class LineRun:
    """One pass over the input. Ids of jobs follow from the batch and the line: a second run of the same batch
    meets the jobs of the first.
    """

    def __init__(
        self,
        batch: BatchRecord,
        lease: BatchLease,
        clients: QueueClients,
        reader: LineReader,
        parts: PartWriter,
        executor: CpuExecutor,
    ) -> None:
        self._batch, self._lease, self._clients = batch, lease, clients
        self._reader, self._parts, self._executor = reader, parts, executor
        self._window = Window(WINDOW_JOBS, WINDOW_BYTES)
        self._live = LiveTokens()
        self.answered = 0  # rows
        self._progress_s = time.monotonic()

    @property
    def stalled_s(self) -> float:
        """Returns for how long its queues have taken no line and answered none."""
        return time.monotonic() - self._progress_s

    async def run(self, lines: AsyncIterator[InputLine]) -> None:
        """All rows are committed at its end. Raises LeaseLost, BatchInterrupted, MillstreamError."""
        try:
            await self._parts.written_beside(run_while(self._count_tokens(), self._answer(lines)))
        finally:
            self._lease.live_tokens = 0

    async def _count_tokens(self) -> NoReturn:
        """For those who look at the batch: the lease writes the number when it is renewed."""
        while True:
            await asyncio.sleep(COUNT_TOKENS_S)
            with contextlib.suppress(MillstreamError):  # again soon
                await self._live.look()
            self._lease.live_tokens = self._live.total + self._parts.held_tokens

    async def _answer(self, lines: AsyncIterator[InputLine]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                async for queue, rows in self._chunks(lines):
                    group.create_task(self._complete(self._clients[queue], rows))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _chunks(self, lines: AsyncIterator[InputLine]) -> AsyncIterator[tuple[str, list[EncodedLine]]]:
        """Rows of one queue each; every row holds its place in the window."""
        waiting: dict[str, list[EncodedLine]] = {}
        async for row in unwritten_rows(lines, self._reader, self._parts):
            if not self._window.try_enter(row.size, row.prompts):  # it is full: send the rows at hand first
                for queue in list(waiting):
                    yield queue, waiting.pop(queue)
                await self._window.enter(row.size, row.prompts)
            waiting.setdefault(row.queue, []).append(row)
            if len(waiting[row.queue]) == CHUNK_ROWS:
                yield row.queue, waiting.pop(row.queue)
        for queue, rows in waiting.items():
            yield queue, rows

    async def _complete(self, client: QueueClient, rows: list[EncodedLine]) -> None:
        for attempt in range(1, MAX_ROUNDS + 1):
            jobs = await self._submit(client, rows)
            self._live.begin(client, (job_id for job_id, row in jobs.items() if self._shows_live(row)))
            lines: LineEnds[EncodedLine, EndedJob | JobError] = LineEnds(jobs)
            rows = []
            async with aclosing(client.ended(list(jobs))) as ended:
                async for job_id, end in ended:
                    del jobs[job_id]
                    line = lines.end(job_id, end)
                    if isinstance(end, EndedJob) and end.record.state is State.EXPIRED:
                        raise BatchInterrupted  # its deadline was the batch's
                    if line.left:
                        if isinstance(end, EndedJob) and end.record.state is not State.COMPLETED:
                            await cancel_rest(client, line.left)
                    elif attempt < MAX_ROUNDS and any(isinstance(one, NotFound) for one in line.ends):
                        rows.append(line.row)  # the server was emptied
                    else:
                        await self._end(client, line)
            if not rows:
                return

    async def _end(self, client: QueueClient, line: LineJobs[EncodedLine, EndedJob | JobError]) -> None:
        finished = await row_of(line.row, line.ends, self._executor)
        for job_id in line.ids:
            self._live.end(job_id)
        await self._parts.add(finished, client, line.ids)
        self._window.leave(line.row.size, line.row.prompts)
        self.answered += 1
        self._progress_s = time.monotonic()

    def _shows_live(self, row: EncodedLine) -> bool:
        return not row.logprobs and not self._parts.is_counted(row.line)

    async def _submit(self, client: QueueClient, rows: list[EncodedLine]) -> dict[str, EncodedLine]:
        """The rows' jobs by id, once the queue has all of them, those of one row in the order of its prompts.
        A conflict is with a job that an earlier version of the gateway submitted for the same line.
        """
        jobs: dict[str, EncodedLine] = {}
        while rows:
            again: list[EncodedLine] = []
            for row, outcomes in outcomes_by_row(rows, await self._outcomes(client, rows)):
                taken = [one for one in outcomes if isinstance(one, Submitted | Conflict)]
                job_ids = [one.id if isinstance(one, Submitted) else one.job_id for one in taken]
                match refusal_of(one for one in outcomes if not isinstance(one, Conflict)):
                    case None:
                        jobs |= dict.fromkeys(job_ids, row)
                        self._progress_s = time.monotonic()
                    case QueueFull() | Unavailable() | QueueMismatch():
                        again.append(row)
                    case AccessDenied() as refusal:
                        raise refusal
                    case refusal:
                        await cancel_rest(client, job_ids)
                        await self._parts.add(refused_row(row, refusal))
                        self._window.leave(row.size, row.prompts)
            rows = again
            if rows:
                await asyncio.sleep(AGAIN_S)
        return jobs

    async def _outcomes(self, client: QueueClient, rows: list[EncodedLine]) -> list[Outcome]:
        """One for each job of each row."""
        deadline_s = max(1.0, self._lease.left_s)
        jobs: list[JobFields] = [
            {"request": request, "id": own_id, "deadline_s": deadline_s}
            for row in rows
            for request, own_id in zip(row.requests, self._batch.own_ids(row.line, row.prompts), strict=True)
        ]
        try:
            return await client.submit_many(jobs, wait_s=ROOM_S)
        except (QueueMismatch, Unavailable) as error:  # before any row was sent
            return [error] * len(jobs)


async def unwritten_rows(
    lines: AsyncIterator[InputLine], reader: LineReader, parts: PartWriter
) -> AsyncIterator[EncodedLine]:
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
