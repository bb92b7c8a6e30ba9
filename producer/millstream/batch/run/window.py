"""Bounds the part of a run that is under way: neither this process nor the queue grows with the file."""

from __future__ import annotations

import asyncio


class Window:
    """A limit on jobs and on bytes; a line above either limit is admitted alone.

    A line's bytes are inside until its jobs are submitted, if it can be read again, or until they have ended;
    those of the images that it names only while it is sent. One task enters, any number load and leave.
    `jobs` is the number of jobs inside: a line has one for each prompt.
    """

    def __init__(self, jobs: int, input_bytes: int) -> None:
        self._most_jobs = jobs
        self._most_bytes = input_bytes
        self.jobs = 0
        self._bytes = 0
        self._loaded = 0  # of `_bytes`: of lines that are sent
        self._room = asyncio.Event()

    def try_enter(self, size: int, jobs: int = 1) -> bool:
        if self.jobs and (self.jobs + jobs > self._most_jobs or self._bytes + size > self._most_bytes):
            return False
        self.jobs += jobs
        self._bytes += size
        return True

    async def enter(self, size: int, jobs: int = 1) -> None:
        while not self.try_enter(size, jobs):
            await self._wait()

    def leave(self, size: int, jobs: int = 1) -> None:
        self.jobs -= jobs
        self._bytes -= size
        self._room.set()

    def try_load(self, size: int) -> bool:
        """Take more bytes for a line that is inside. The first is always admitted: who loads waits for
        nobody else, and will unload.
        """
        if self._loaded and self._bytes + size > self._most_bytes:
            return False
        self._loaded += size
        self._bytes += size
        return True

    async def load(self, size: int) -> None:
        while not self.try_load(size):
            await self._wait()

    def unload(self, size: int) -> None:
        self._loaded -= size
        self._bytes -= size
        self._room.set()

    async def _wait(self) -> None:
        self._room.clear()
        await self._room.wait()
