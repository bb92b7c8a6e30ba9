"""Runs lines: jobs through the queues, rows into a ledger, with a bounded number of jobs under way.

Every job's id follows from the run and the line, so that no line is submitted twice, and an interrupted run
continues at any point.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Generic

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import (
    LineEnds,
    cancel_rest,
    job_id_of_taken,
    outcomes_by_row,
    refusal_of,
)
from millstream.batch.run.equal_lines import EqualLines
from millstream.batch.run.row_ledger import C, E, P, Refusal, RowLedger
from millstream.batch.run.window import Window
from millstream.client.submit.submission import Submitted
from millstream.errors import Conflict, MillstreamError, QueueFull, QueueMismatch, Unavailable

CHUNK_ROWS = 256  # sent in one round trip, waited for together
MAX_ROUNDS = 5  # submissions of a job that the server keeps losing
MOST_LOADED = 16  # rows of one task whose images are read at once
MOST_READ = 4  # answers of ended rows that are in memory at once, for equal ones


class LineRun(Generic[C, E, P]):
    """One pass over lines that have no row yet. The counts may be watched while it runs."""

    def __init__(
        self, ledger: RowLedger[C, E, P], window: Window, *, most_answers: int | None = None
    ) -> None:
        """`most_answers`: that are remembered for equal lines; None: all."""
        self.queues: set[str] = set()  # that jobs were sent to
        self.unsent = 0  # jobs under way that the server has not accepted yet
        self._ledger = ledger
        self._window = window
        self._equal: EqualLines[P] = EqualLines(most_answers)
        self._group = asyncio.TaskGroup()
        self._reading = asyncio.Semaphore(MOST_READ)

    @property
    def under_way(self) -> int:
        """Number of jobs of rows that were read and have not ended."""
        return self._window.jobs

    @property
    def followers(self) -> int:
        """Number of prompts of rows under way that have no job and wait for an equal row's answer."""
        return self._equal.followers

    async def run(self, rows: AsyncIterable[BatchLine]) -> None:
        """Raises what the ledger raises."""
        try:
            async with self._group:
                async for queue, some in self._chunks(rows):
                    self._send(queue, some)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def _send(self, queue: str, rows: deque[BatchLine], attempt: int = 1) -> None:
        self.queues.add(queue)
        self._group.create_task(self._submit(self._ledger.client_of(queue), rows, attempt))

    async def _chunks(self, rows: AsyncIterable[BatchLine]) -> AsyncIterator[tuple[str, deque[BatchLine]]]:
        """Yields rows of one queue at a time; every row holds its place in the window."""
        waiting: dict[str, deque[BatchLine]] = {}
        async for row in rows:
            if not self._window.try_enter(row.size, row.prompts):  # it is full: send the rows at hand first
                for queue in list(waiting):
                    yield queue, waiting.pop(queue)
                await self._window.enter(row.size, row.prompts)
            if not self._needs_job(row):
                continue
            waiting.setdefault(row.queue, deque()).append(row)
            if len(waiting[row.queue]) == CHUNK_ROWS:
                yield row.queue, waiting.pop(row.queue)
        for queue, some in waiting.items():
            yield queue, some

    def _needs_job(self, row: BatchLine) -> bool:
        """False if an equal line answers the row: at once if it has its answer, otherwise when it ends."""
        if not self._ledger.has_job(row):
            if (place := self._equal.place_of(row)) is not None:
                self._group.create_task(self._answer_from(place, row))
                return False
            if self._equal.try_follow(row):
                return False
        self._equal.lead(row)
        return True

    async def _answer_from(self, place: P, row: BatchLine) -> None:
        """Give the row the answer at the place, or, if that is gone, a job: lines are read on meanwhile."""
        async with self._reading:
            if (answer := await self._ledger.answer_at(place)) is not None:
                await self._reuse(answer, [row])
                return
        if not self._equal.try_follow(row):
            self._equal.lead(row)
            self._send(row.queue, deque([row]))

    async def _submit(self, client: C, waiting: deque[BatchLine], attempt: int) -> None:
        """Submit these rows, and take them from `waiting`, as many at a time as there is room for: other
        tasks wait for ends, which make room for the rest.
        """
        some: list[BatchLine] = []
        self.unsent += _jobs_in(waiting)
        try:
            while waiting:
                jobs: dict[str, BatchLine] = {}  # those of one row in the order of its prompts
                some = await self._loaded(waiting)
                while some:
                    some, refusals = await self._submit_once(client, some, jobs)
                    await self._ledger.pause(client, refusals)
                if jobs:
                    self._group.create_task(self._complete(client, jobs, attempt))
        finally:
            self.unsent -= _jobs_in(waiting) + _jobs_in(some)

    async def _complete(self, client: C, jobs: dict[str, BatchLine], attempt: int) -> None:
        """Write each line's row when its jobs end, and submit it again if they were lost."""
        again: deque[BatchLine] = deque()
        lines: LineEnds[E] = LineEnds(jobs)
        async with aclosing(self._ledger.ended(client, list(jobs))) as ended:
            async for job_id, end in ended:
                del jobs[job_id]  # a row is released when it ends, even if others are slow
                line = lines.end(job_id, end)
                if line.left:
                    if self._ledger.fails_line(end):
                        await cancel_rest(client, line.left)
                    continue
                self._window.end(line.row.sent_bytes)
                if await self._ledger.repeats(client, line, again=attempt < MAX_ROUNDS):
                    again.append(line.row)
                else:
                    await self._leave(line.row, await self._ledger.end(client, line))
        if again:
            self._send(again[0].queue, again, attempt + 1)

    async def _submit_once(
        self, client: C, rows: Sequence[BatchLine], jobs: dict[str, BatchLine]
    ) -> tuple[list[BatchLine], list[Refusal]]:
        """Adds the jobs of rows that are taken. Returns the rows that have to be sent again, and why."""
        left: list[BatchLine] = []
        refusals: list[Refusal] = []
        for row, outcomes in outcomes_by_row(rows, await self._ledger.submit(client, rows)):
            taken = [one for one in outcomes if isinstance(one, Submitted | Conflict)]
            match refusal_of(outcomes):
                case None:
                    self._ledger.takes(row, taken)
                    jobs |= dict.fromkeys(map(job_id_of_taken, taken), self._sent(row))
                case (QueueFull() | Unavailable() | QueueMismatch()) as refusal:
                    self._ledger.waits(row, refusal, taken)
                    left.append(row)
                    refusals.append(refusal)
                case refusal:
                    await cancel_rest(client, list(map(job_id_of_taken, taken)))
                    await self._refuse(row, refusal)
        self.unsent -= _jobs_in(rows) - _jobs_in(left)
        return left, refusals

    async def _loaded(self, waiting: deque[BatchLine]) -> list[BatchLine]:
        """Takes the next rows to send, and reads what they are without: of one, and of more if there is
        room for their bytes.
        """
        rows = await self._next(waiting)
        found = await self._read([row for row in rows if row.late_bytes])
        made: list[BatchLine] = []
        for row in rows:
            if isinstance(loaded := found.get(row.line, row), BatchLine):
                made.append(loaded)
            else:
                self.unsent -= row.prompts
                await self._refuse(row, loaded)
        return made

    async def _next(self, waiting: deque[BatchLine]) -> list[BatchLine]:
        if size := waiting[0].late_bytes:
            await self._window.load(size)
        rows, late = [waiting.popleft()], int(size > 0)
        while waiting and late < MOST_LOADED:
            if size := waiting[0].late_bytes:
                if not self._window.try_load(size):
                    break
                late += 1
            rows.append(waiting.popleft())
        return rows

    async def _read(self, rows: Iterable[BatchLine]) -> dict[int, BatchLine | MillstreamError]:
        try:
            async with asyncio.TaskGroup() as group:
                loads = {row.line: group.create_task(self._load(row)) for row in rows}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return {line: load.result() for line, load in loads.items()}

    async def _load(self, row: BatchLine) -> BatchLine | MillstreamError:
        found = await self._ledger.load(row)
        if isinstance(found, BatchLine):  # it has fewer bytes than it might have had
            self._window.unload(row.late_bytes - found.late_bytes)
        return found

    def _sent(self, row: BatchLine) -> BatchLine:
        """The row as it waits for its end."""
        light = row.light or row
        entered = row.size - light.size
        if not row.late_bytes and not entered:
            return light
        self._window.send(row.late_bytes, entered)
        return replace(light, sent_bytes=row.late_bytes + entered)

    async def _refuse(self, row: BatchLine, refusal: MillstreamError) -> None:
        """The row is never sent again."""
        if row.late_bytes:
            self._window.unload(row.late_bytes)
        await self._ledger.refuse(row, refusal)
        await self._leave(row, None)

    async def _leave(self, row: BatchLine, place: P | None) -> None:
        """A row was written, with an answer if it has a place: equal ones get it, or run by themselves."""
        self._window.leave(row.size, row.prompts)
        equal = self._equal.failed(row) if place is None else self._equal.answered(row, place)
        if not equal:
            return
        answer = None if place is None else await self._ledger.answer_at(place)
        if answer is not None:
            await self._reuse(answer, equal)
            return
        for start in range(0, len(equal), CHUNK_ROWS):
            self._send(row.queue, deque(equal[start : start + CHUNK_ROWS]))

    async def _reuse(self, answer: object, rows: Sequence[BatchLine]) -> None:
        for row in rows:
            if await self._ledger.reuse(row, answer):
                self._window.leave(row.size, row.prompts)
            else:
                self._send(row.queue, deque([row]))
            await asyncio.sleep(0)  # they may be many, and large


def _jobs_in(rows: Iterable[BatchLine]) -> int:
    return sum(row.prompts for row in rows)
