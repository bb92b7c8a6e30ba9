"""Runs suspects isolated, one by one: a job that was in the batch when engines or workers died gets the
engine for itself, so that the next death has one cause. Isolated runs start after all other work that the
worker holds, and while a suspect waits no more is taken in: neither can starve the other.

    isolated ─► the engine has computed something ─► "alone" is recorded ─► read ─► computed ─► end written
                                                                              └─ the engine died: recorded

The payload is read in isolation, too, since reading it may be what kills the worker. Whoever finds this
worker dead learns from the record which job to charge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream.wire.messages.script_replies import EndOutcome
from millstream.wire.server_errors import is_damage
from millstream.wire.timing import Backoff
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import MOST_REFUSALS
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch

_log = structlog.get_logger(__name__)
_LOOK_S = 1.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_PICTURED = (JobPhase.PREPARING, JobPhase.READING)  # its images are prepared and taken into its prompt


@dataclass(slots=True, eq=False)
class Quarantine:
    """`read` prepares a job."""

    consumer: Consumer
    table: JobTable
    queue: EngineQueue
    metrics: Metrics
    watch: LoopWatch
    _: KW_ONLY
    read: Callable[[Job], Awaitable[None]]
    _reader: asyncio.Task[None] | None = None  # that waits for a thread
    _stopping: bool = False

    def stop(self) -> None:
        self._stopping = True
        self.queue.isolation_changed.notify()
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Until `stop`: a suspect that runs then is released by the drain, and nobody waits for the thread
        that is reading it.
        """
        with self.watch:
            while not self._stopping:
                job = self.queue.try_isolate()
                if job is None:
                    await self._change()
                    continue
                await self._run_isolated(job)
                if not self._stopping:
                    self.queue.end_isolation()
                    self.table.changed.notify()  # others are read again

    async def _run_isolated(self, job: Job) -> None:
        _log.info(
            "suspect runs isolated",
            job_id=job.id,
            died=job.attempt.losses,
            died_alone=job.attempt.losses_alone,
        )
        proved = await self._proved(job)
        if proved and await self._record(job, alone=True):
            if job.phase is JobPhase.UNREAD:
                self._reader = asyncio.current_task()
                await self.read(job)
                self._reader = None
            while job.phase in _PICTURED and self.table.holds(job) and not self._stopping:
                await self._change()
            if self.queue.awaits_isolated_run(job):
                self.queue.hand_over_isolated(job)
        while self.table.holds(job) and (job.phase.has_ended or self.queue.computes(job)):
            if self._stopping:
                return
            await self._change()
        if proved and self.table.holds(job):
            await self._record(job, alone=False)

    async def _proved(self, job: Job) -> bool:
        """Wait until the engine has computed something: with one that never works all would look guilty."""
        while not self.queue.try_prove_engine():
            if self._stopping or not self.queue.awaits_isolated_run(job):
                return False
            await self._change()
        return True

    async def _record(self, job: Job, *, alone: bool) -> bool:
        """Repeat until the server has replied. False: the job is not ours any more, or has no engine."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._stopping and self.table.holds(job) and not job.phase.has_ended:
            if alone and not self.queue.awaits_isolated_run(job):
                return False
            self.watch.turn()
            try:
                outcome = await calls.run(self.consumer.redis, self._call(job, alone))
            except (RedisError, OSError) as error:
                self._refused(job, error)
                await backoff.pause()
                continue
            if outcome is EndOutcome.FENCED and self.table.holds(job):
                _log.warning("job belongs to another attempt now", job_id=job.id, attempt=job.attempt.number)
                self.metrics.fenced.inc()
                self.table.drop(job)
            return outcome is EndOutcome.OK
        return False

    def _call(self, job: Job, alone: bool) -> calls.ScriptCall[EndOutcome]:
        return calls.isolate(
            job.shard,
            job.claim(self.consumer.name),
            alone=alone,
            died=job.attempt.losses,
            died_alone=job.attempt.losses_alone,
        )

    def _refused(self, job: Job, error: Exception) -> None:
        _log.warning("suspect cannot be recorded yet", job_id=job.id, error=str(error))
        job.log.refusals = job.log.refusals + 1 if is_damage(error) else 0
        if job.log.refusals >= MOST_REFUSALS:
            message = f"the job's keys are damaged: {error}"
            self.table.conclude(job, State.FAILED, ErrorInfo(code="keys_damaged", message=message))

    async def _change(self) -> None:
        self.watch.turn()
        await self.queue.isolation_changed.wait(_LOOK_S)
