"""Runs a batch: lines in, jobs through the queues, rows out, with a bounded number of jobs under way.

Every job's id follows from the run, the line's custom_id and its body, so that no line is submitted twice and
an interrupted run continues at any point. It writes to no terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from millstream.batch.files.input_lines import InputFile, InputLine
from millstream.batch.files.journal import Journal
from millstream.batch.files.runfile import identity
from millstream.batch.rows.batch_lines import BatchLine, custom_id_of, parse
from millstream.batch.rows.faults import LineFault, duplicate, too_long
from millstream.batch.rows.line_ends import LineEnds, LineJobs, cancel_rest, joined_end
from millstream.batch.rows.output_rows import (
    answer_row,
    failure_row,
    fault_row,
    incomplete_row,
    is_incomplete,
    mismatch_row,
    refusal_row,
    reused_row,
)
from millstream.batch.run.equal_lines import EqualLines
from millstream.batch.run.model_watch import ModelWatch
from millstream.batch.run.pace import work_of
from millstream.batch.run.result_cleanup import ResultCleanup
from millstream.batch.run.run_clock import RunClock
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.submit_lines import LineSubmitter
from millstream.batch.run.tally import Summary, Tally
from millstream.batch.run.window import Window
from millstream.client.async_client import AsyncClient
from millstream.errors import (
    JobCancelled,
    JobError,
    MillstreamError,
    NotFound,
    QueueFull,
)
from millstream.openai.answer_body import first_text, schema_error_of
from millstream.wire.messages.job_messages import Result

CHUNK_ROWS = 256  # sent in one round trip, waited for together
MAX_ROUNDS = 5  # submissions of a job that the server keeps losing
_End = Result | JobError


class BatchRun:
    """One pass over the input. `tally`, `clock`, `source`, `queues` and the counts may be watched while it
    runs.
    """

    def __init__(
        self, source: InputFile, journal: Journal, client: AsyncClient, options: RunOptions | None = None
    ) -> None:
        self.source = source
        self.tally = Tally()
        self.clock = RunClock(self.tally, journal)
        self.queues: set[str] = set()  # that jobs were sent to
        self._journal = journal
        self._client = client
        self._options = options or RunOptions()
        self._models = ModelWatch(journal, self._options.on_change)
        self._submitter = LineSubmitter(
            journal, self.tally, self._models, self._refused, self._options.patience
        )
        self._cleanup = ResultCleanup(journal, self._options.clear_jobs)
        self._equal = EqualLines()
        self._group = asyncio.TaskGroup()
        self._clients: dict[str, AsyncClient] = {}  # by queue
        self._window = Window(self._options.window, self._options.window_bytes)
        self._seen: set[bytes] = set()  # custom_ids of this pass, as digests: about 100 bytes a line
        self._since_ms = 0  # what was computed before is no work of this run

    async def run(self) -> Summary:
        """Raises Unavailable if the server stops answering, InvalidRequest if a queue's model is replaced and
        its answers may not stand beside the others; a later run continues from there.
        """
        await self._read_server_time()
        try:
            async with self._group:
                async for queue, rows in self._chunks():
                    self._send(queue, rows)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            self.clock.stop()
        await self._cleanup.clear()
        return self.tally.summary(self.clock.seconds, self.clock.earlier)

    async def _read_server_time(self) -> None:
        """Reads the server's clock if there may be jobs that ended before this run began."""
        if self._journal.under_way:
            with contextlib.suppress(MillstreamError):  # the submit reports it, or outlasts it
                self._since_ms = (await self._client.queue_info()).at_ms

    @property
    def waits_for_room(self) -> QueueFull | None:
        """The latest refusal of a full queue; None when there is room."""
        return self._submitter.full

    @property
    def refused_writes(self) -> str | None:
        """The reason why the server takes no jobs, though it answers; None: it takes them."""
        return None if self._submitter.barred is None else str(self._submitter.barred)

    @property
    def unsent(self) -> int:
        """Number of jobs under way that the server has not accepted yet."""
        return self._submitter.unsent

    @property
    def under_way(self) -> int:
        """Number of jobs of rows that were read and have not ended."""
        return self._window.jobs

    @property
    def followers(self) -> int:
        """Number of prompts of rows under way that have no job and wait for an equal row's answer."""
        return self._equal.followers

    def _send(self, queue: str, rows: list[BatchLine]) -> None:
        self.queues.add(queue)
        self._group.create_task(self._complete(self._client_of(queue), rows))

    def _client_of(self, queue: str) -> AsyncClient:
        """The queue's client, which knows the queue's shape and how fast it empties."""
        if queue not in self._clients:
            self._clients[queue] = self._client.with_queue(queue)
        return self._clients[queue]

    async def _chunks(self) -> AsyncIterator[tuple[str, list[BatchLine]]]:
        """Yields rows of one queue at a time; every row holds its place in the window."""
        waiting: dict[str, list[BatchLine]] = {}
        for line in self.source:
            if line.number % CHUNK_ROWS == 0:
                await asyncio.sleep(0)  # many answered lines in a row must not starve other tasks
            row = self._row(line)
            if row is None:
                continue
            if not self._window.try_enter(row.size, row.prompts):  # it is full: send the rows at hand first
                for queue in list(waiting):
                    yield queue, waiting.pop(queue)
                await self._window.enter(row.size, row.prompts)
            if not await self._needs_job(row):
                continue
            waiting.setdefault(row.queue, []).append(row)
            if len(waiting[row.queue]) == CHUNK_ROWS:
                yield row.queue, waiting.pop(row.queue)
        for queue, rows in waiting.items():
            yield queue, rows

    def _row(self, line: InputLine) -> BatchLine | None:
        """The line as a row to submit; None if it has its answer, or has just received its error row."""
        try:
            return self._parsed(line)
        except LineFault as fault:
            if not self._journal.has_line(line.number):
                self._fail(fault_row(line.number, fault, line.data))
            else:
                self.tally.skip(failed=True)
            return None

    def _parsed(self, line: InputLine) -> BatchLine | None:
        if line.data is None:
            raise too_long(self.source.max_line_bytes)
        fields = self._options.completed(parse(line.data))
        custom_id = custom_id_of(fields)
        key = identity(custom_id)
        if key in self._seen:
            raise duplicate(custom_id)
        self._seen.add(key)
        if self._journal.has_id(custom_id):
            self.tally.skip(failed=self._journal.has_failure(custom_id))
            return None
        try:
            row = self._options.row_of(line.number, custom_id, fields)
        except LineFault as fault:
            fault.custom_id = custom_id
            raise
        self.tally.note_unknown(row.ignored)
        self.tally.note_deprecated(row.deprecated)
        asked = row.request.response_format
        more = 0 if asked is None else len(asked.text)  # it may be the run's, and large
        shared = row.answer_key if self._options.reuse else None
        return replace(row, size=row.size or len(line.data) + more, answer_key=shared)

    async def _needs_job(self, row: BatchLine) -> bool:
        """False if an equal line answers the row: at once if it has its answer, otherwise when it ends."""
        if self._own_id(row) not in self._journal.under_way:  # it has no job of an earlier run
            place = self._equal.place_of(row)
            if place is not None and (answer := self._journal.answer_at(place)) is not None:
                await self._reuse(answer, [row])
                return False
            if self._equal.try_follow(row):
                return False
        self._equal.lead(row)
        return True

    async def _complete(self, client: AsyncClient, rows: list[BatchLine]) -> None:
        """Submit these rows and write each one's output row when it ends.

        A job of an earlier run that is cancelled was cancelled with that run: its line gets a new job; so
        does one whose answer is of another model than the run's, if such lines are answered anew.
        """
        for attempt in range(1, MAX_ROUNDS + 1):
            found: set[str] = set()  # jobs of an earlier run
            self.clock.begin()
            jobs = await self._submitter.submit(client, rows, found)
            lines: LineEnds[BatchLine, _End] = LineEnds(jobs)
            rows.clear()  # a row is released when it ends, even if others are slow
            async with aclosing(client.as_completed(jobs)) as ended:
                async for job_id, end in ended:
                    del jobs[job_id]
                    line = lines.end(job_id, end)
                    if line.left:
                        if isinstance(end, JobError) and not isinstance(end, NotFound):
                            await cancel_rest(client, line.left)
                    elif await self._is_done(client, line, found, again=attempt < MAX_ROUNDS):
                        await self._clean_up(client, line.ids)
                    else:
                        rows.append(line.row)
            if not rows:
                return

    async def _is_done(
        self, client: AsyncClient, line: LineJobs[BatchLine, _End], found: set[str], *, again: bool
    ) -> bool:
        """Ends a line whose jobs have ended. False, only with `again`: it is to be submitted again."""
        row, ends = line.row, line.ends
        end = joined_end(ends)
        if again and self._is_to_repeat(row, end, not found.isdisjoint(line.ids)):
            return False
        for one in ends:
            if not await self._models.admits(client, one, again=again):
                self._journal.cancelled([self._own_id(row)])
                return False
        await self._end(row, line.ids[0], end, ends)
        return True

    async def _clean_up(self, client: AsyncClient, job_ids: Sequence[str]) -> None:
        if not self._options.keep_results:
            for job_id in job_ids:
                self._cleanup.add(client, job_id)
        if self._cleanup.due:
            await self._cleanup.clear()

    def _is_to_repeat(self, row: BatchLine, end: _End, found: bool) -> bool:
        if isinstance(end, JobCancelled) and found:
            self._journal.cancelled([self._own_id(row)])
            return True
        return isinstance(end, NotFound)  # the server was emptied, or the job has just expired

    def _own_id(self, row: BatchLine) -> str:
        return self._journal.own_id(row.digest, row.prompts)

    def _refused(self, row: BatchLine, error: MillstreamError) -> None:
        self._give_up(row, refusal_row(row, error))

    async def _end(self, row: BatchLine, job_id: str, end: _End, ends: Sequence[_End]) -> None:
        """`end`: that of all jobs of the line; `ends`: of each."""
        work = work_of(end, self._since_ms)
        self.clock.tick(work)
        if isinstance(end, JobError):
            self._give_up(row, failure_row(row, end.job_id, end))
        elif schema_error_of(end):
            self._give_up(row, mismatch_row(row, job_id, end))
        elif is_incomplete(end):
            self._give_up(row, incomplete_row(row, job_id, end))
            self.tally.incomplete += 1
        else:
            answer = answer_row(row, job_id, end)
            place = self._journal.write([answer], ())
            each = [one for one in ends if isinstance(one, Result)]
            self.tally.add(end, row.expected, work, each)
            self._leave(row)
            await self._reuse(answer, self._equal.answered(row, place))

    async def _reuse(self, answer: Mapping[str, Any], rows: Sequence[BatchLine]) -> None:
        """Answers these rows with an equal row's answer."""
        for row in rows:
            self._journal.write([reused_row(row, answer)], ())
            self.tally.reuse(first_text(answer["response"]["body"]), row.expected)
            self.clock.tick()
            self._leave(row)
            await asyncio.sleep(0)  # they may be many, and large

    def _give_up(self, row: BatchLine, failure: Mapping[str, Any]) -> None:
        self._fail(failure)
        self._leave(row)
        equal = self._equal.failed(row)
        for start in range(0, len(equal), CHUNK_ROWS):
            self._send(row.queue, equal[start : start + CHUNK_ROWS])

    def _leave(self, row: BatchLine) -> None:
        self._journal.ends(self._own_id(row))
        self._window.leave(row.size, row.prompts)

    def _fail(self, row: Mapping[str, Any]) -> None:
        self._journal.write((), [row])
        self.tally.fail(row)
