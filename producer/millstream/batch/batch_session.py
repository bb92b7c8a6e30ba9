"""One run on files, in the steps that a program and the command share. Knows no terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import Survey, begin
from millstream.batch.line_queues import check_queues
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run_cancellation import Cancelled, cancel_jobs
from millstream.client.async_client import AsyncClient
from millstream.errors import Unavailable
from millstream.wire.state.queue_info import ModelIdentity


class BatchSession:
    """The steps, in their order: `read_models`, if a server is given, `compare`, `prepare`, `running`; and at
    the end the `finish` of its journal, which is open all the time.
    """

    survey: Survey  # from `compare` on

    def __init__(self, source: Path, journal: Journal, options: RunOptions, *, named: str = "") -> None:
        """`named`: the name to record as IN if `source` is a copy."""
        self.source, self.journal, self.options = source, journal, options
        self._named = named
        self._served: Mapping[str, ModelIdentity] = {}

    async def read_models(self, client: AsyncClient) -> None:
        """Read the models that the run's queues have now, where it has recorded those that they had."""
        with contextlib.suppress(Unavailable):  # a run that submits nothing more needs no server
            self._served = {q: await client.with_queue(q).queue_model() for q in self.journal.notes.models}

    def compare(self) -> Survey:
        """Compare IN with OUT, which may take long; changes nothing. Raises as `begin` does."""
        self.survey = begin(self.source, self.journal, self.options, named=self._named, served=self._served)
        return self.survey

    async def prepare(self, client: AsyncClient) -> Cancelled:
        """Prepare OUT, and cancel the jobs that no line asks for any more. Raises InvalidRequest, before any
        change, if lines name queues that the server does not have.
        """
        if self.options.queue is None:
            await check_queues(client, self.survey.models)
        await asyncio.to_thread(self.prepare_files)
        return await cancel_jobs(client, self.journal, self.survey.left, wanted=False)

    def prepare_files(self) -> None:
        """Remove rows of lines that are run again, and record IN, queue and models. Raises WriteFailed."""
        survey, journal = self.survey, self.journal
        if survey.redo and survey.moved:
            journal.notes.leave()
            survey.left = dict(journal.notes.left)
        if survey.dropped:
            journal.drop(survey.dropped)
        journal.go_on_with(survey.named, self.options.queue)
        for queue, model in survey.served.items():
            journal.notes.serves(queue, model)
        if survey.retried:
            journal.retry(survey.retried)

    @contextlib.contextmanager
    def running(
        self, client: AsyncClient, room: Callable[[], Awaitable[None]] | None = None
    ) -> Iterator[BatchRun]:
        """The run, to be awaited and watched. `room`: as BatchRun has it."""
        with InputFile(self.source) as lines:
            lines.total = self.survey.lines
            order = self.survey.order if lines.version == self.survey.version else None
            yield BatchRun(lines, self.journal, client, self.options, room, order)
