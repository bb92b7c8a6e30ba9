"""The rows of a run's files, read while the run writes them.

The files are the buffer: no row is in memory before it is asked for, and a run that is far ahead of its
reader reads no more lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any

from millstream.batch.files.journal import Journal

UNREAD_BYTES = 1024**2  # of rows, from which on no more lines are read


class WrittenRows:
    """Each row of OUT and of the error file, those of earlier runs first; a run awaits `room` before it reads a
    line.
    """

    def __init__(self, journal: Journal) -> None:
        """The journal is open, and has no rows that are about to be removed."""
        self._files = [path.open("rb") for path in (journal.rows, journal.errors)]
        self._written, self._read = asyncio.Event(), asyncio.Event()
        journal.on_write = self._written.set

    async def room(self) -> None:
        while sum(os.fstat(file.fileno()).st_size - file.tell() for file in self._files) > UNREAD_BYTES:
            self._read.clear()
            await self._read.wait()

    async def during(self, work: Coroutine[Any, Any, object]) -> AsyncGenerator[dict[str, Any]]:
        """Yields rows until the work has ended. Raises what it raises; a reader that leaves cancels it."""
        with contextlib.ExitStack() as closing:
            for file in self._files:
                closing.enter_context(file)
            running = asyncio.ensure_future(work)
            running.add_done_callback(lambda _: self._written.set())
            try:
                while True:
                    self._written.clear()
                    ended = running.done()
                    for row in self._new_rows():
                        yield row
                    if ended:
                        break
                    await self._written.wait()
            finally:
                running.cancel()
                await asyncio.wait([running])
            running.result()

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        for file in self._files:
            for line in file:
                self._read.set()
                yield json.loads(line)
