"""Bounds the part of a run that is under way: neither this process nor the queue grows with the file."""

from __future__ import annotations

import asyncio


class Window:
    """A limit on jobs and on bytes of input lines; a line above either limit is admitted alone.

    One task enters, any number leave. `jobs` is the number of jobs inside: a line has one for each prompt.
    """

    def __init__(self, jobs: int, input_bytes: int) -> None:
        self._most_jobs = jobs
        self._most_bytes = input_bytes
        self.jobs = 0
        self._bytes = 0
        self._room = asyncio.Event()

    def try_enter(self, size: int, jobs: int = 1) -> bool:
        if self.jobs and (self.jobs + jobs > self._most_jobs or self._bytes + size > self._most_bytes):
            return False
        self.jobs += jobs
        self._bytes += size
        return True

    async def enter(self, size: int, jobs: int = 1) -> None:
        while not self.try_enter(size, jobs):
            self._room.clear()
            await self._room.wait()

    def leave(self, size: int, jobs: int = 1) -> None:
        self.jobs -= jobs
        self._bytes -= size
        self._room.set()
