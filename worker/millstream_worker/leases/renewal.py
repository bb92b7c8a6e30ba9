"""Renews the leases of all held jobs: a job stays this worker's as long as it renews."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import structlog
from redis.exceptions import RedisError

from millstream.logs.failure_log import FailureLog
from millstream.wire import calls
from millstream.wire.keys import ShardKeys
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.script_replies import RenewReply
from millstream.wire.server_errors import is_outage
from millstream.wire.timing import jittered, within
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch

_log = structlog.get_logger(__name__)
_PAGE = 500  # jobs in one call: a script holds up the server
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Page:
    """The (job id, entry id) pairs of one lane that one call renews."""

    shard: ShardKeys
    lane: str
    held: list[tuple[str, str]]


@dataclass(slots=True, eq=False)
class Leases:
    consumer: Consumer
    table: JobTable
    metrics: Metrics
    renew_s: float
    watch: LoopWatch = field(default_factory=lambda: LoopWatch("renewal", inf))
    monotonic: Callable[[], float] = time.monotonic
    _damage: FailureLog = field(init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._damage = FailureLog("some leases cannot be renewed", level="error", monotonic=self.monotonic)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Renew until `stop`, which comes when the worker holds nothing any more."""
        due = self.monotonic() + self.renew_s
        pause = self.renew_s
        with self.watch:
            while not await within(self._stopping, pause):
                renewed = await self._try_renew()
                now = self.monotonic()
                self.metrics.lease_lateness.set(max(0.0, now - due))
                if renewed:
                    due, pause = now + self.renew_s, self.renew_s
                    self.watch.succeed()
                else:
                    pause = jittered(min(_RETRY_S, self.renew_s))
                    self.watch.turn()

    async def _try_renew(self) -> bool:
        try:
            await self.renew()
        except (RedisError, OSError) as error:
            trouble = self.consumer.outage if is_outage(error) else self._damage
            trouble.failed(doing="renewal of leases", jobs=len(self.table), error=str(error))
            return False
        return True

    async def renew(self) -> None:
        """Renew all leases once. Raises redis-py's errors if the server does not answer."""
        jobs = list(self.table)
        pages = self._pages()
        refused: list[tuple[Page, Exception]] = []
        for page, reply in zip(pages, await self._run(pages), strict=True):
            if isinstance(reply, RenewReply):
                self._apply(jobs, reply)
            else:
                refused.append((page, reply))
        for page, error in refused:  # after the others: one node of a Cluster may be gone
            await self._renew_one_by_one(jobs, page, error)

    async def _renew_one_by_one(self, jobs: list[Job], page: Page, error: Exception) -> None:
        """One job with damaged keys fails its whole page; the others must keep their lease."""
        alone = [Page(page.shard, page.lane, [pair]) for pair in page.held]
        renewed = [reply for reply in await self._run(alone) if isinstance(reply, RenewReply)]
        if not renewed:
            raise error
        self._damage.failed(jobs=len(alone) - len(renewed), error=str(error))
        for reply in renewed:
            self._apply(jobs, reply)

    async def _run(self, pages: Sequence[Page]) -> list[RenewReply | Exception]:
        return await calls.run_many(
            self.consumer.redis,
            [
                calls.renew(page.shard, lane=page.lane, owner=self.consumer.name, held=page.held)
                for page in pages
            ],
        )

    def _pages(self) -> list[Page]:
        lanes: dict[tuple[ShardKeys, str], list[tuple[str, str]]] = defaultdict(list)
        for (shard, lane, entry_id), job_id in self.table.entries().items():
            job = self.table.get(job_id)
            if job is None or job.entry.entry_id == entry_id:  # else one is stale, and replies name ids only
                lanes[shard, lane].append((job_id, entry_id))
        return [
            Page(shard, lane, held[at : at + _PAGE])
            for (shard, lane), held in lanes.items()
            for at in range(0, len(held), _PAGE)
        ]

    def _apply(self, jobs: list[Job], reply: RenewReply) -> None:
        """`jobs`: those held when the request was sent."""
        lost, cancelled = set(reply.lost), set(reply.cancelled)
        for job in jobs:
            if not self.table.holds(job) or job.phase.has_ended:
                continue  # it ends while the reply is on its way
            if job.id in lost:
                _log.warning("lease lost", job_id=job.id, attempt=job.attempt.number)
                self.metrics.fenced.inc()
                self.table.drop(job)
            elif job.id in cancelled:
                self.table.conclude(job, State.CANCELLED)
        for job_id in cancelled:
            if self.table.get(job_id) is None:  # it is still becoming a job
                self.table.cancel(job_id)
