"""The rows of a run's files, read while the run writes them.

The files are the buffer: no row is in memory before it is asked for, and a run that is far ahead of its
reader reads no more lines.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Coroutine
from contextlib import ExitStack
from itertools import chain
from typing import Any

from millstream.batch.files.journal import Journal
from millstream.batch.run.line_run import CHUNK_ROWS

UNREAD_BYTES = 1024**2  # of rows, from which on no more lines are read


class WrittenRows(ExitStack):
    """Each row of OUT and of the error file, those of earlier runs first. A context manager."""

    def __init__(self, journal: Journal) -> None:
        """The journal is open, and has no rows that are about to be removed."""
        super().__init__()
        self._files = [self.enter_context(path.open("rb")) for path in (journal.rows, journal.errors)]
        self._written, self._read = asyncio.Event(), asyncio.Event()
        self._written.set()  # by earlier runs
        journal.on_write = self._written.set

    async def room(self) -> None:
        """Wait until the reader has come nearer."""
        while sum(os.fstat(file.fileno()).st_size - file.tell() for file in self._files) > UNREAD_BYTES:
            self._read.clear()
            await self._read.wait()

    async def during(self, work: Coroutine[Any, Any, object]) -> AsyncGenerator[dict[str, Any]]:
        """Yields rows until the work has ended. Raises what it raises; a reader that leaves cancels it."""
        running = asyncio.ensure_future(work)
        running.add_done_callback(lambda _: self._written.set())
        try:
            ended = False
            while not ended:
                await self._written.wait()
                self._written.clear()
                ended = running.done()
                for number, line in enumerate(chain(*self._files), 1):
                    self._read.set()
                    yield json.loads(line)
                    if number % CHUNK_ROWS == 0:
                        await asyncio.sleep(0)  # a reader that waits for nothing must not starve the run
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        running.result()
