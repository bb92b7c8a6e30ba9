"""The ledger of a run on files: its jobs are noted in the journal before they are submitted, its rows written
to OUT and to the error file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from redis.exceptions import ResponseError

from millstream.batch.files.journal import Journal
from millstream.batch.row_loader import RowLoader
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import LineJobs, joined_end
from millstream.batch.rows.output_rows import (
    answer_row,
    failure_row,
    incomplete_row,
    is_incomplete,
    mismatch_row,
    refusal_row,
    reused_row,
)
from millstream.batch.run.model_watch import ModelWatch
from millstream.batch.run.pace import work_of
from millstream.batch.run.result_cleanup import ResultCleanup
from millstream.batch.run.row_ledger import Refusal, RowLedger
from millstream.batch.run.run_clock import RunClock
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Tally
from millstream.client.async_client import AsyncClient
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import Outcome, Submitted, pause_s
from millstream.errors import (
    Conflict,
    JobCancelled,
    JobError,
    MillstreamError,
    NotFound,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.openai.answer_body import first_text, schema_error_of
from millstream.openai.prompt_list import own_ids
from millstream.wire.messages.job_messages import Result

_End = Result | JobError


class FileLedger(RowLedger[AsyncClient, Result | JobError, int]):
    """`full`: the queue's latest refusal, until there is room; `barred`: the server's, until
    it takes writes (its disk is full, say). `since_ms`: what was computed before is no work of this run.
    """

    def __init__(
        self,
        journal: Journal,
        client: AsyncClient,
        options: RunOptions,
        tally: Tally,
        clock: RunClock,
        loader: RowLoader,
    ) -> None:
        self.full: QueueFull | None = None
        self.barred: ResponseError | None = None
        self.since_ms = 0
        self.cleanup = ResultCleanup(journal, options.clear_jobs)
        self._journal, self._client, self._options = journal, client, options
        self._tally, self._clock, self._loader = tally, clock, loader
        self._models = ModelWatch(journal, options.on_change)
        self._clients: dict[str, AsyncClient] = {}  # by queue
        self._earlier = set(journal.notes.under_way)  # jobs of an earlier run, by their own ids
        self._absent: set[str] = set()  # jobs that are being sent, and that the server did not have before
        self._reached = False  # the server has answered before
        self._silent_s: dict[str, float] = {}  # since when a queue's server does not, by queue

    def client_of(self, queue: str) -> AsyncClient:
        if queue not in self._clients:
            self._clients[queue] = self._client.with_queue(queue)
        return self._clients[queue]

    def has_job(self, row: BatchLine) -> bool:
        return self._own_id(row) in self._earlier

    async def load(self, row: BatchLine) -> BatchLine | MillstreamError:
        return await self._loader.load(row)

    async def submit(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Outcome]:
        """Raises InvalidRequest before anything is sent to another model than the run's."""
        self._clock.begin()
        await self._models.look(client)
        own = [self._own_id(row) for row in rows]
        if new := [one for one in own if self._journal.notes.under_way.get(one) != client.queue]:
            self._journal.notes.submits(client.queue, new)
        absent = self._journal.notes.sent.sends(own)
        self._absent |= absent
        try:
            outcomes = await client.submit_many(list(chain.from_iterable(map(self._jobs, rows))))
        except MillstreamError as error:  # before any row was sent
            for own_id in absent:
                self._journal.notes.sent.refused(own_id)
            if not isinstance(error, Unavailable):
                raise
            return [error for row in rows for _ in range(row.prompts)]
        self._reached = True
        return outcomes

    def takes(self, row: BatchLine, taken: Sequence[Submitted | Conflict]) -> None:
        own_id = self._own_id(row)
        self._journal.notes.sent.accepted(own_id)
        self._absent.discard(own_id)
        if any(isinstance(one, Submitted) and one.created for one in taken):
            self._earlier.discard(own_id)  # the server had lost it, or never got it
        self._tally.not_durable += sum(isinstance(one, Submitted) and not one.durable for one in taken)

    def waits(self, row: BatchLine, refusal: Refusal, taken: Sequence[Submitted | Conflict]) -> None:
        own_id = self._own_id(row)
        known = not isinstance(refusal, Unavailable) or _write_refusal(refusal)
        if own_id in self._absent and not taken and known:
            self._journal.notes.sent.refused(own_id)
        self._absent.discard(own_id)

    async def pause(self, client: AsyncClient, refusals: Sequence[Refusal]) -> None:
        """Raises QueueMismatch: no worker is new enough, and a later run sends the rest; Unavailable if the
        server has not answered for `Patience.silence_s`, or never.
        """
        self.full = next((one for one in refusals if isinstance(one, QueueFull)), None)
        self.barred = next(filter(None, map(_write_refusal, refusals)), None)
        for refusal in refusals:
            if isinstance(refusal, QueueMismatch):
                raise refusal
        if silence := next((one for one in refusals if isinstance(one, Unavailable)), None):
            silent_s = time.monotonic() - self._silent_s.setdefault(client.queue, time.monotonic())
            if not self._reached or silent_s > self._options.patience.silence_s:
                raise silence
        else:
            self._silent_s.pop(client.queue, None)
        if waiting := [one for one in refusals if not isinstance(one, QueueMismatch)]:
            await asyncio.sleep(min(pause_s(waiting), self._options.patience.again_s))

    async def refuse(self, row: BatchLine, refusal: MillstreamError) -> None:
        self._fail(row, refusal_row(row, refusal))

    def ended(
        self, client: AsyncClient, job_ids: Sequence[str]
    ) -> AsyncGenerator[tuple[str, Result | JobError]]:
        return client.as_completed(job_ids)

    def fails_line(self, end: _End) -> bool:
        return isinstance(end, JobError) and not isinstance(end, NotFound)

    async def repeats(self, client: AsyncClient, line: LineJobs[_End], *, again: bool) -> bool:
        """A job of an earlier run that is cancelled was cancelled with that run: its line gets a new job; so
        does one whose answer is of another model than the run's, if such lines are answered anew.
        """
        own_id, end = self._own_id(line.row), joined_end(line.ends)
        if again and isinstance(end, JobCancelled) and own_id in self._earlier:
            self._journal.cancelled([own_id])
            return True
        if again and isinstance(end, NotFound):  # the server was emptied, or the job has just expired
            return True
        for one in line.ends:
            if not await self._models.admits(client, one, again=again):
                self._journal.cancelled([own_id])
                return True
        return False

    async def end(self, client: AsyncClient, line: LineJobs[_End]) -> int | None:
        """Returns the place of the row in OUT."""
        place = self._write(line.row, line.ids[0], joined_end(line.ends), line.ends)
        if not self._options.keep_results:
            for job_id in line.ids:
                self.cleanup.add(client, job_id)
        if self.cleanup.due:
            await self.cleanup.clear()
        return place

    def _write(self, row: BatchLine, job_id: str, end: _End, ends: Sequence[_End]) -> int | None:
        """`end`: that of all jobs of the line; `ends`: of each."""
        work = work_of(end, self.since_ms)
        self._clock.tick(work)
        if isinstance(end, JobError):
            self._fail(row, failure_row(row, end.job_id, end))
        elif schema_error_of(end):
            self._fail(row, mismatch_row(row, job_id, end))
        elif is_incomplete(end):
            self._fail(row, incomplete_row(row, job_id, end))
            self._tally.incomplete += 1
        else:
            place = self._journal.write([answer_row(row, job_id, end)], ())
            self._tally.add(end, row.expected, work, [one for one in ends if isinstance(one, Result)])
            self._journal.notes.ends(self._own_id(row))
            return place
        return None

    async def answer_at(self, place: int) -> Mapping[str, Any] | None:
        return self._journal.answer_at(place)

    async def reuse(self, row: BatchLine, answer: Mapping[str, Any]) -> bool:
        self._journal.write([reused_row(row, answer)], ())
        self._tally.reuse(first_text(answer["response"]["body"]), row.expected)
        self._clock.tick()
        self._journal.notes.ends(self._own_id(row))
        return True

    def _fail(self, row: BatchLine, failure: Mapping[str, Any]) -> None:
        self._journal.write((), [failure])
        self._tally.fail(failure)
        self._journal.notes.ends(self._own_id(row))

    def _jobs(self, row: BatchLine) -> Iterator[JobFields]:
        assert not row.files or row.light, "its files were read"
        for request, own_id in zip(row.sent, own_ids(self._own_id(row)), strict=True):
            yield {"request": request, "id": own_id}

    def _own_id(self, row: BatchLine) -> str:
        """The one name of its jobs."""
        return self._journal.notes.own_id(row.digest, row.prompts)


def _write_refusal(outcome: MillstreamError) -> ResponseError | None:
    """The reply of a server that answers, and takes no write now."""
    return outcome.__cause__ if isinstance(outcome.__cause__, ResponseError) else None
