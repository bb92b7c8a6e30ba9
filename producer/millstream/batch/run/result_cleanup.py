"""Deletes from the server the jobs whose rows are on disk.

A run of millions of lines would otherwise keep all its results in the server's memory until they expire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict

from millstream.batch.files.journal import Journal
from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError


class ResultCleanup:
    """Rows are written to disk before their jobs are forgotten: a run that is killed in between computes
    nothing twice and loses nothing. `most` jobs are due: one fsync and one round trip.
    """

    def __init__(self, journal: Journal, most: int) -> None:
        self._journal = journal
        self._most = most
        self._ended: defaultdict[AsyncClient, list[str]] = defaultdict(list)
        self._count = 0
        self._one_at_a_time = asyncio.Lock()  # later callers wait here, which delays their next submits, too

    def add(self, client: AsyncClient, job_id: str) -> None:
        """Add a job whose row was written."""
        self._ended[client].append(job_id)
        self._count += 1

    @property
    def due(self) -> bool:
        return self._count >= self._most

    async def clear(self) -> None:
        """Raises WriteFailed. Jobs that the server does not forget now expire later."""
        async with self._one_at_a_time:
            ended, self._ended, self._count = self._ended, defaultdict(list), 0
            if ended:
                await asyncio.to_thread(self._journal.sync)
            for client, job_ids in ended.items():
                with contextlib.suppress(MillstreamError):
                    await client.forget_many(job_ids, keep_cached=True)
