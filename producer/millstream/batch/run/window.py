"""Bounds the part of a run that is under way: neither this process nor the queue grows with the file."""

from __future__ import annotations

import asyncio

MESSAGE_BYTES = 192 * 1024**2  # of the lines of one run whose messages lie in the queue, or will soon


class Window:
    """A limit on jobs, on bytes that this process holds, and on those of all messages under way; a line above
    a limit is admitted alone.

    A line's bytes are held until its jobs are submitted, if it can be read again, or until they have ended;
    those of the images that it names only while it is sent. What is submitted lies in the queue until the
    line ends. One task enters, any number load, and no line that is under way waits for one that loads: each
    makes room when it ends. `jobs` is the number of jobs inside: a line has one for each prompt.
    """

    def __init__(self, jobs: int, held_bytes: int, message_bytes: int = MESSAGE_BYTES) -> None:
        self._most_jobs = jobs
        self._most_held = held_bytes
        self._most_bytes = message_bytes
        self.jobs = 0
        self._held = 0
        self._loaded = 0  # of `_held`: of lines that are sent
        self._away = 0  # that the queue alone has
        self._room = asyncio.Event()

    def try_enter(self, size: int, jobs: int = 1) -> bool:
        if self.jobs and (self.jobs + jobs > self._most_jobs or not self._fits(size)):
            return False
        self.jobs += jobs
        self._held += size
        return True

    async def enter(self, size: int, jobs: int = 1) -> None:
        while not self.try_enter(size, jobs):
            await self._wait()

    def leave(self, size: int, jobs: int = 1) -> None:
        self.jobs -= jobs
        self._held -= size
        self._room.set()

    def try_load(self, size: int) -> bool:
        """Take more bytes for a line that is inside. The first is always admitted."""
        if (self._loaded or self._away) and not self._fits(size):
            return False
        self._loaded += size
        self._held += size
        return True

    async def load(self, size: int) -> None:
        """Waits for room. Only who has nothing loaded may call it."""
        while not self.try_load(size):
            await self._wait()

    def unload(self, size: int) -> None:
        self._loaded -= size
        self._held -= size
        self._room.set()

    def send(self, loaded: int, size: int = 0) -> None:
        """The queue alone has what was loaded of a line, and so much of what it entered with."""
        self._away += loaded + size
        self.unload(loaded)
        self.leave(size, 0)

    def end(self, size: int) -> None:
        """The queue has these bytes no longer."""
        self._away -= size
        self._room.set()

    def _fits(self, size: int) -> bool:
        held = self._held + size
        return held <= self._most_held and held + self._away <= self._most_bytes

    async def _wait(self) -> None:
        self._room.clear()
        await self._room.wait()
