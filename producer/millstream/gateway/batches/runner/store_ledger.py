"""The ledger of a batch: its rows are written in parts by the holder of its lease. Ids of jobs follow from
the batch and the line, so that a second run of the same batch meets the jobs of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import NoReturn

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import LineJobs, cancel_rest, job_id_of_taken
from millstream.batch.run.row_ledger import Refusal, RowLedger
from millstream.client.session.ended_job import EndedJob
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import Outcome, Submitted
from millstream.errors import (
    AccessDenied,
    Conflict,
    JobError,
    MillstreamError,
    NotFound,
    QueueMismatch,
    Unavailable,
)
from millstream.gateway.batches.records.batch_lease import BatchInterrupted, BatchLease
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.batches.runner.finished_rows import (
    StoredAnswer,
    refused_row,
    reused_line,
    row_of,
    stored_answer,
)
from millstream.gateway.batches.runner.live_tokens import LiveTokens
from millstream.gateway.batches.runner.part_writer import PartWriter, RowPlace
from millstream.gateway.cpu_executor import CpuExecutor, UnexpectedError
from millstream.gateway.queues.queue_clients import QueueClient, QueueClients
from millstream.wire.messages.job_messages import State

COUNT_TOKENS_S = 3.0  # between two looks at the rows under way
ROOM_S = 60.0  # one wait for room in the queue, repeated without limit
AGAIN_S = 2.0  # until rows are sent again that nobody takes now
_End = EndedJob | JobError


class StoreLedger(RowLedger[QueueClient, EndedJob | JobError, RowPlace]):
    """Made for one pass over the input. `answered`: rows that were written in it."""

    def __init__(
        self,
        batch: BatchRecord,
        lease: BatchLease,
        clients: QueueClients,
        parts: PartWriter,
        executor: CpuExecutor,
        *,
        resumed: bool,
    ) -> None:
        """`resumed`: another gateway, or an earlier pass, may have submitted lines."""
        self.answered = 0
        self._progress_s = time.monotonic()
        self._batch, self._lease, self._clients = batch, lease, clients
        self._parts, self._executor, self._resumed = parts, executor, resumed
        self._live = LiveTokens()

    @property
    def stalled_s(self) -> float:
        """Returns for how long its queues have taken no line and answered none."""
        return time.monotonic() - self._progress_s

    async def count_tokens(self) -> NoReturn:
        """Counts for those who look at the batch: the lease writes the number when it is renewed."""
        while True:
            await asyncio.sleep(COUNT_TOKENS_S)
            with contextlib.suppress(MillstreamError):  # again soon
                await self._live.look()
            self._lease.live_tokens = self._live.total + self._parts.held_tokens

    def client_of(self, queue: str) -> QueueClient:
        return self._clients[queue]

    async def submit(self, client: QueueClient, rows: Sequence[BatchLine]) -> list[Outcome]:
        deadline_s = max(1.0, self._lease.left_s)
        jobs: list[JobFields] = [
            {"request": request, "id": own_id, "deadline_s": deadline_s}
            for row in rows
            for request, own_id in zip(row.sent, self._own_ids(row), strict=True)
        ]
        try:
            return await client.submit_many(jobs, wait_s=ROOM_S)
        except (QueueMismatch, Unavailable) as error:  # before any row was sent
            return [error] * len(jobs)

    def takes(self, row: BatchLine, taken: Sequence[Submitted | Conflict]) -> None:
        self._progress_s = time.monotonic()
        if not row.sampling.logprobs and not self._parts.is_counted(row.line):
            self._live.begin(self._clients[row.queue], map(job_id_of_taken, taken))

    async def pause(self, client: QueueClient, refusals: Sequence[Refusal]) -> None:
        if refusals:
            await asyncio.sleep(AGAIN_S)

    async def refuse(self, row: BatchLine, refusal: MillstreamError) -> None:
        """Raises AccessDenied: it is the gateway's fault, not the line's."""
        if isinstance(refusal, AccessDenied):
            raise refusal
        await self._parts.add(refused_row(row, refusal))

    async def ended(
        self, client: QueueClient, job_ids: Sequence[str]
    ) -> AsyncGenerator[tuple[str, EndedJob | JobError]]:
        """Raises BatchInterrupted when a job has expired: its deadline was the batch's."""
        async with aclosing(client.ended(job_ids)) as ended:
            async for job_id, end in ended:
                if isinstance(end, EndedJob) and end.record.state is State.EXPIRED:
                    raise BatchInterrupted
                yield job_id, end

    def fails_line(self, end: _End) -> bool:
        return isinstance(end, EndedJob) and end.record.state is not State.COMPLETED

    async def repeats(self, client: QueueClient, line: LineJobs[_End], *, again: bool) -> bool:
        return again and any(isinstance(one, NotFound) for one in line.ends)  # the server was emptied

    async def end(self, client: QueueClient, line: LineJobs[_End]) -> RowPlace | None:
        finished = await row_of(line.row, line.ends, self._executor)
        for job_id in line.ids:
            self._live.end(job_id)
        place = await self._parts.add(finished, client, line.ids)
        self._advance()
        return place if finished.is_answer else None

    async def answer_at(self, place: RowPlace) -> StoredAnswer | None:
        """None, too, if the row cannot be read: the line is computed."""
        if (data := await self._parts.row_at(place)) is None:
            return None
        with contextlib.suppress(UnexpectedError):
            return await self._executor.run(self._batch.tenant, len(data), stored_answer, data)
        return None

    async def reuse(self, row: BatchLine, answer: StoredAnswer) -> bool:
        try:
            finished = await self._executor.run(self._batch.tenant, answer.size, reused_line, row, answer)
        except UnexpectedError:
            return False
        if self._resumed:  # the line may have jobs
            await cancel_rest(self._clients[row.queue], self._own_ids(row))
        await self._parts.add(finished)
        self._advance()
        return True

    def _advance(self) -> None:
        self.answered += 1
        self._progress_s = time.monotonic()

    def _own_ids(self, row: BatchLine) -> list[str]:
        return self._batch.own_ids(row.line, row.prompts)
