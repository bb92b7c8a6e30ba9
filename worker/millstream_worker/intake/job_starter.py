"""Starts delivered entries: retries until the server accepts, releases entries when the worker stops, and
leaves alone those whose message version this worker does not take. Admission decides about started jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError
from millstream.logs.failure_log import FailureLog
from millstream.wire import calls
from millstream.wire.keys import ShardKeys
from millstream.wire.messages.record import read_job
from millstream.wire.messages.script_replies import LaneEntry
from millstream.wire.server_errors import is_damage, is_outage
from millstream.wire.timing import Backoff
from millstream.wire.versions import FIRST_VERSION, TAKEN
from millstream_worker.intake.admission import UNREADABLE, Admission, timing_of
from millstream_worker.intake.job_preparer import fail
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import JobAttempt, JobInput, JobTimes
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable

_log = structlog.get_logger(__name__)
_LOOK_S = 0.5  # between two checks whether the worker is stopping


@dataclass(slots=True, eq=False)
class JobStarter:
    """Passes started jobs to `admission`. `refused` is called when the shard serves another model than this
    worker's.
    """

    consumer: Consumer
    table: JobTable
    queue: EngineQueue
    admission: Admission
    model: ModelSlot
    refused: Callable[[], None]
    _unstarted: FailureLog = field(default_factory=lambda: FailureLog("jobs not started yet"))
    _damage: FailureLog = field(
        default_factory=lambda: FailureLog("keys of jobs are damaged; the jobs are left alone", level="error")
    )

    async def take(
        self, shard: ShardKeys, entries: Sequence[LaneEntry], stopping: Callable[[], bool]
    ) -> list[LaneEntry]:
        """Start these entries and hold their jobs. Returns the entries of versions that this worker does not
        take. While the server refuses writes, the start is repeated, until `stopping`: entries not started
        then are released. At maxmemory one is forced if no job of this shard runs here, so that a server full
        of waiting jobs empties itself.
        """
        self.table.expect(shard, entries)  # tokenizing many long inputs takes longer than a lease
        try:
            known = [entry for entry in entries if not _is_foreign(entry)]
            await self._start_all(shard, known, stopping)
            return await self._leave_foreign(shard, entries)
        finally:
            self.table.expect_no_more(shard, entries)

    async def _start_all(
        self, shard: ShardKeys, entries: Sequence[LaneEntry], stopping: Callable[[], bool]
    ) -> None:
        left = list(entries)
        backoff = Backoff()
        nonces = {entry.entry_id: uuid4().hex for entry in left}  # the same for every repetition
        while left:
            before = len(left)
            left = await self._start(shard, left, nonces, stopping)
            if len(left) < before:
                backoff.reset()
            if left and stopping():
                await self.leave(shard, left)
                return
            if left:
                await backoff.pause()

    async def _leave_foreign(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> list[LaneEntry]:
        foreign = [entry for entry in entries if _is_foreign(entry)]
        if foreign:
            _log.debug("jobs of another version left alone", jobs=len(foreign))
            await self.leave(shard, foreign)
        return foreign

    async def leave(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """Release entries that were never started. Where that fails, others take them over when overdue."""
        release = [
            calls.release(shard, entry.claim(self.consumer.name), lane=entry.lane) for entry in entries
        ]
        try:
            await calls.run_many(self.consumer.redis, release)
        except (RedisError, OSError) as error:
            _log.warning("entries not released", entries=len(entries), error=str(error))

    async def _start(
        self,
        shard: ShardKeys,
        entries: Sequence[LaneEntry],
        nonces: dict[str, str],
        stopping: Callable[[], bool],
    ) -> list[LaneEntry]:
        """Returns the entries that have to be started again."""
        idle = not any(job.shard == shard for job in self.table)  # other shards may be on other nodes
        starts = [
            calls.start(
                shard,
                entry.claim(self.consumer.name),
                lane=entry.lane,
                nonce=nonces[entry.entry_id],
                model_digest=self.model.get().info.digest,
                force_at_maxmemory=idle and entry is entries[0],
            )
            for entry in entries
        ]
        try:
            replies = await calls.run_many(self.consumer.redis, starts)
        except (RedisError, OSError) as error:
            self._not_started(len(entries), error)
            return list(entries)
        again: list[tuple[LaneEntry, Exception | None]] = []
        others: list[LaneEntry] = []  # for workers of the model that the shard serves
        for entry, reply in zip(entries, replies, strict=True):
            if isinstance(reply, ProtocolError):
                await self._fail_unreadable(shard, entry, reply)
            elif isinstance(reply, Exception) and is_damage(reply):
                self._damage.failed(of_job=entry.job_id, error=str(reply))
                self.table.expect_no_more(shard, [entry])
            elif isinstance(reply, Exception):
                again.append((entry, reply))
            elif reply.served:
                others.append(entry)
            elif reply.started and await self._may_read(stopping):
                await self.admission.admit(shard, entry, reply)
                await self._let_engine_read(stopping)
            elif reply.started:
                again.append((entry, None))  # the worker stops: it is released
        if others:
            await self.leave(shard, others)
            self.refused()
            await asyncio.sleep(_LOOK_S)  # they are free at once, also for this worker
        if len(again) == len(entries) and again[0][1] is not None:
            self._not_started(len(again), again[0][1])
        return [entry for entry, _ in again]

    def _not_started(self, jobs: int, error: Exception) -> None:
        trouble = self.consumer.outage if is_outage(error) else self._unstarted
        trouble.failed(doing="start of jobs", jobs=jobs, error=str(error))

    async def _fail_unreadable(self, shard: ShardKeys, entry: LaneEntry, error: ProtocolError) -> None:
        """It was started, but the log in the reply is invalid."""
        try:
            record = await read_job(self.consumer.redis, shard, entry.job_id)
        except (RedisError, OSError, ProtocolError):
            return  # the entry is pending with us: the reader finds it again
        if record is not None and record.owner == self.consumer.name:
            attempt = JobAttempt(record.attempt, record.died)
            job = Job(shard, entry, attempt, JobInput(UNREADABLE), JobTimes(timing_of(record)))
            fail(job, "log_damaged", str(error))
            self.table.take(job)

    async def _may_read(self, stopping: Callable[[], bool]) -> bool:
        """Wait while a suspect runs isolated. False if the worker stops before."""
        while self.queue.isolated is not None:
            if stopping():
                return False
            await self.table.changed.wait(_LOOK_S)
        return True

    async def _let_engine_read(self, stopping: Callable[[], bool]) -> None:
        """Wait while the engine is far behind; one that hangs does not delay a drain."""
        while not stopping() and not await self.queue.engine.writable(_LOOK_S):
            continue


def _is_foreign(entry: LaneEntry) -> bool:
    """Other workers may take this version. An invalid version is refused here."""
    return entry.version not in TAKEN and entry.version >= FIRST_VERSION
