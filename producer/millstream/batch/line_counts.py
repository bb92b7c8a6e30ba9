"""Counts the prompts of a batch's lines by the workers of their queues, a bounded number at a time."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path

from millstream.batch.files.input_file import InputFile
from millstream.batch.input_check import InputCheck
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import LineFault, fault_of_body
from millstream.batch.run.run_options import RunOptions
from millstream.client.async_client import AsyncClient
from millstream.client.jobs.count_jobs import PromptTokens
from millstream.client.submit.requests import JobFields
from millstream.errors import InvalidRequest, JobFailed, MillstreamError
from millstream.openai.api_error import failure
from millstream.openai.prompt_list import error_as_sent
from millstream.openai.request_body import DEFAULT_QUEUE
from millstream.wire.messages.job_messages import Result

_CHUNK_ROWS = 256  # counted together
_CHUNKS = 4  # under way at once
_CHUNK_BYTES = 4 * 2**20  # of rows, after which a chunk is counted


class LineCounts:
    """Mutable. `tokens` of the lines that were counted; `estimated`: the queues of those that could not be,
    for want of workers that count. Lines that workers refuse are added to the bad ones of `found`.
    """

    def __init__(self, client: AsyncClient, found: InputCheck, options: RunOptions) -> None:
        self.tokens = 0
        self.estimated: set[str] = set()
        self._client = client
        self._found = found
        self._options = options
        self._room = asyncio.Semaphore(_CHUNKS)

    async def take(self, path: Path) -> None:
        """Count all lines that can run, which are read again only if workers count some of them. Raises
        Unavailable, QueueMismatch.
        """
        queues = {self._options.queue_of(named or DEFAULT_QUEUE) for named in self._found.models}
        for queue in queues:
            one = await self._client.with_queue(queue).count("1", lane=self._options.lane)
            if one.estimated:
                self.estimated.add(queue)
        if queues == self.estimated:
            return
        try:
            with InputFile(path) as source:
                async with asyncio.TaskGroup() as group:
                    await self._read(source, group)
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _read(self, source: InputFile, group: asyncio.TaskGroup) -> None:
        chunks: dict[str, list[BatchLine]] = {}
        for row in InputCheck(self._options).rows(source, ""):
            if row.files:  # nothing is read for a check
                self.estimated.add(row.queue)
            if row.queue in self.estimated:
                continue
            rows = chunks.setdefault(row.queue, [])
            rows.append(row)
            if len(rows) == _CHUNK_ROWS or sum(one.size for one in rows) > _CHUNK_BYTES:
                await self._room.acquire()
                group.create_task(self._count(row.queue, chunks.pop(row.queue)))
        for queue, rows in chunks.items():
            await self._room.acquire()
            group.create_task(self._count(queue, rows))

    async def _count(self, queue: str, rows: list[BatchLine]) -> None:
        try:
            client = self._client.with_queue(queue)
            asked: list[JobFields] = [{"request": request} for row in rows for request in row.requests]
            outcomes = iter(await client.count_many(asked))
        finally:
            self._room.release()
        for row in rows:
            own = list(islice(outcomes, row.prompts))
            counts = [one for one in own if isinstance(one, PromptTokens)]
            if len(counts) < len(own):
                place, error = next((i, one) for i, one in enumerate(own) if isinstance(one, MillstreamError))
                self._found.refuse(row.line, _fault(error, row, place))
                self._found.findings.drop(row.sampling, row.prompts)
                continue
            self.tokens += sum(count.tokens for count in counts)
            if any(count.estimated for count in counts):
                self.estimated.add(queue)


def _fault(error: MillstreamError, row: BatchLine, place: int) -> LineFault:
    """The reason why the line cannot run. Raises the error if it is none of the line's."""
    if isinstance(error, JobFailed) and isinstance(error.result, Result) and error.result.error:
        told = failure(error_as_sent(error.result.error, row.named, place, row.prompts))
        named = f"body.{told.param}" if told.param else None
        return LineFault(error.reason, told.message, named)
    if isinstance(error, InvalidRequest):
        return fault_of_body(error)
    raise error
