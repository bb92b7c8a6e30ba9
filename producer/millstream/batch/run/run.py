"""Runs a batch of a file: lines in, jobs through the queues, rows out. It writes to no terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.order.line_order import LineOrder
from millstream.batch.order.ordered_input import ordered_lines
from millstream.batch.row_loader import RowLoader
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.faults import LineFault, duplicate
from millstream.batch.rows.line_findings import note_names
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.rows.output_rows import fault_row
from millstream.batch.rows.seen_ids import SeenIds
from millstream.batch.run.file_ledger import FileLedger
from millstream.batch.run.line_run import CHUNK_ROWS, LineRun
from millstream.batch.run.run_clock import RunClock
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import BatchProgress, Summary, Tally
from millstream.batch.run.window import Window
from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError


class BatchRun:
    """One pass over the input. `tally`, `clock`, `source`, `ledger`, `lines` and `progress` may be watched
    while it runs.
    """

    def __init__(
        self,
        source: InputFile,
        journal: Journal,
        client: AsyncClient,
        options: RunOptions | None = None,
        room: Callable[[], Awaitable[None]] | None = None,
        order: LineOrder | None = None,
    ) -> None:
        """`room` is awaited before each line: who takes the rows may be slower than the queue. `order`: in
        which lines are sent, if not in the file's.
        """
        self.source = source
        self.tally = Tally()
        self.clock = RunClock(self.tally, journal)
        self._journal, self._client, self._room = journal, client, room
        self._options = options = options or RunOptions()
        self._loader = RowLoader(source.path, options)
        self.ledger = FileLedger(journal, client, options, self.tally, self.clock, self._loader)
        window = Window(options.window, options.window_bytes, options.message_bytes)
        self.lines = LineRun(self.ledger, window)
        self._seen = SeenIds()  # custom_ids of this pass
        self._order = order
        if order is not None:
            self.tally.groups, self.tally.shared_tokens = order.groups, order.shared_tokens

    async def run(self) -> Summary:
        """Raises Unavailable if the server stops answering, InvalidRequest if a queue's model is replaced and
        its answers may not stand beside the others; a later run continues from there.
        """
        await self._read_server_time()
        try:
            await self.lines.run(self._rows())
        finally:
            self.clock.stop()
            await self._loader.close()
        await self.ledger.cleanup.clear()
        return self.tally.summary(self.clock.seconds, self.clock.earlier)

    async def _read_server_time(self) -> None:
        """Reads the server's clock if there may be jobs that ended before this run began."""
        if self._journal.notes.under_way:
            with contextlib.suppress(MillstreamError):  # the submit reports it, or outlasts it
                self.ledger.since_ms = (await self._client.queue_info()).at_ms

    @property
    def progress(self) -> BatchProgress:
        lines = max(self.source.total or 0, self.tally.done)  # it may have grown since they were counted
        return BatchProgress(
            lines,
            self.tally.completed,
            self.tally.failed,
            self.tally.skipped,
            self.lines.under_way,
            self.clock.elapsed_s,
            self.tally.groups,
            self.tally.shared_tokens,
        )

    async def _rows(self) -> AsyncIterator[BatchLine]:
        """Yields the lines to submit; the others have their rows, or have just received their error rows."""
        count = 0
        async for line in ordered_lines(self.source, self._order):
            if (count := count + 1) % CHUNK_ROWS == 0:
                await asyncio.sleep(0)  # many answered lines in a row must not starve other tasks
            if self._room is not None:
                await self._room()
            try:
                row = self._row(line)
            except LineFault as fault:
                if self._journal.has_line(line.number):
                    self.tally.skip(failed=True)
                    continue
                failure = fault_row(line.number, fault, line.data)
                self._journal.write((), [failure])
                self.tally.fail(failure)
            else:
                if row is not None:
                    yield row

    def _row(self, line: InputLine) -> BatchLine | None:
        """The line as a row to submit; None if it has its row."""
        custom_id, fields = self._options.fields_of(line)
        if (self._order and line.number in self._order.repeated) or not self._seen.add(custom_id):
            raise duplicate(custom_id)
        if self._journal.has_id(custom_id):
            self.tally.skip(failed=self._journal.has_failure(custom_id))
            return None
        row = self._options.row_of(line, custom_id, fields)
        note_names(self.tally.unknown, row.ignored)
        self.tally.deprecated.update(row.deprecated)
        row = row if self._options.reuse else replace(row, answer_key=None)
        return self._loader.with_light(row, line.place)
