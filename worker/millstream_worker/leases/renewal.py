"""Keeps the lease of every job held, by being alive: a job of any length is this worker's as long as it
renews.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import State
from millstream.wire.replies import RenewReply
from millstream_worker.jobs import Job, Phase
from millstream_worker.metrics import Metrics
from millstream_worker.table import JobTable

_log = structlog.get_logger(__name__)
_PAGE = 500  # jobs in one call: a script holds up the server
_RETRY_S = 0.5


class Leases:
    def __init__(
        self,
        redis: Any,
        owner: str,
        table: JobTable,
        metrics: Metrics,
        renew_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._owner = owner
        self._table = table
        self._metrics = metrics
        self._renew_s = renew_s
        self._monotonic = monotonic
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Renew until `stop`: the last thing a worker ends, as long as it holds anything."""
        due = self._monotonic() + self._renew_s
        while not await self._stopped_within(due - self._monotonic()):
            try:
                await self.renew()
            except (RedisError, OSError) as error:
                _log.warning("leases not renewed yet", jobs=len(self._table), error=str(error))
                due = self._monotonic() + min(_RETRY_S, self._renew_s) * random.uniform(0.5, 1.5)
                continue
            now = self._monotonic()
            self._metrics.lease_lateness.set(max(0.0, now - due))
            due = now + self._renew_s

    async def renew(self) -> None:
        """Renew all leases once. Raises redis-py's errors where the server is not there."""
        pages = self._pages()
        renewals = [
            calls.renew(
                shard, lane=lane, owner=self._owner, held=[(job.id, job.entry.entry_id) for job in jobs]
            )
            for shard, lane, jobs in pages
        ]
        replies = await calls.run_many(self._redis, renewals)
        for (_, _, jobs), reply in zip(pages, replies, strict=True):
            if isinstance(reply, Exception):
                raise reply
            self._settle(jobs, reply)

    def _pages(self) -> list[tuple[ShardKeys, str, list[Job]]]:
        lanes: dict[tuple[ShardKeys, str], list[Job]] = defaultdict(list)
        for job in self._table:
            lanes[job.shard, job.entry.lane].append(job)
        return [
            (shard, lane, jobs[at : at + _PAGE])
            for (shard, lane), jobs in lanes.items()
            for at in range(0, len(jobs), _PAGE)
        ]

    def _settle(self, jobs: list[Job], reply: RenewReply) -> None:
        lost, cancelled = set(reply.lost), set(reply.cancelled)
        for job in jobs:
            if not self._table.holds(job) or job.phase is Phase.ENDED:
                continue  # it ends while the answer is on its way
            if job.id in lost:
                _log.warning("lease lost", job_id=job.id, attempt=job.attempt)
                self._metrics.fenced.inc()
                self._table.drop(job)
            elif job.id in cancelled:
                self._table.conclude(job, State.CANCELLED)

    async def _stopped_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopping.wait()
        return self._stopping.is_set()
