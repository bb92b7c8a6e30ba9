"""Decides about started entries: a job is prepared at once, put off, or ended as given up. An invalid request
becomes a failed result, never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import structlog

from millstream.wire.keys import ShardKeys
from millstream.wire.messages.job_messages import ErrorInfo, Request, State, Timing
from millstream.wire.messages.script_replies import JobRecord, LaneEntry, StartReply
from millstream.wire.versions import TAKEN
from millstream_worker.images.messages import ImageTokens
from millstream_worker.intake.cached_results import CachedResults
from millstream_worker.intake.job_preparer import JobPreparer, earlier_choices, size_of
from millstream_worker.intake.preparation.outline import image_bytes, outline
from millstream_worker.intake.preparation.prepare_job import forget_input
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import AttemptLimits, JobAttempt, JobInput, JobTimes
from millstream_worker.jobs.table import JobTable
from millstream_worker.threads import in_thread

_log = structlog.get_logger(__name__)
_BESIDE_BYTES = 64 * 1024  # beyond that it would delay the jobs behind it
_MOST_KEPT_BYTES = 8 * 2**20  # of messages that wait to be read; others are fetched again
UNREADABLE = Request(token_ids=(0,))  # stands in for a payload that cannot be decoded


@dataclass(slots=True, eq=False)
class Admission:
    table: JobTable
    queue: EngineQueue
    preparer: JobPreparer
    limits: AttemptLimits
    lookup: CachedResults
    _: KW_ONLY
    log_payloads: bool

    async def admit(self, shard: ShardKeys, entry: LaneEntry, started: StartReply) -> None:
        attempt = JobAttempt(started.attempt, started.died, started.died_alone, started.seed)
        attempt.alone = attempt.died >= self.limits.max_died
        job = Job(shard, entry, attempt, JobInput(UNREADABLE), JobTimes(timing_of(started)))
        given_up = self._given_up(job)
        if given_up is not None:
            job.conclude(State.FAILED, given_up, letter=given_up.code)
            self.preparer.recall(job, started)
        elif job.attempt.alone:
            job.input.put_off = started
            self.preparer.recall(job, started)
        elif size_of(job, started) > _BESIDE_BYTES and job.entry.version in TAKEN:
            with self.queue.no_isolation(), self.preparer.net.around(job):  # a part of it
                await self._put_off(job, started)
        else:
            with self.queue.no_isolation():
                await self.preparer.prepare(job, started)
        if job.phase is JobPhase.PREPARING:
            job.input.put_off = started
        if started.cancelled:
            job.conclude(State.CANCELLED)
        shows = self.log_payloads and job.phase is not JobPhase.UNREAD
        shown = (
            {"request": job.request.model_dump(exclude_defaults=True, exclude={"images"})} if shows else {}
        )
        tokens = len(job.input.prompt)
        _log.debug("job started", job_id=job.id, attempt=attempt.number, prompt_tokens=tokens, **shown)
        forget_input(job)
        self.table.take(job)
        if job.phase is JobPhase.LOOKING_UP:
            self.lookup.add(job)

    async def _put_off(self, job: Job, started: StartReply) -> None:
        """Hold the job unread; LongJobReader prepares it later. Until then only its tenant and the output of
        earlier attempts are known.
        """
        job.input.put_off, job.input.unread_bytes = started, size_of(job, started)
        job.input.image_bytes = image_bytes(job.entry.payload)
        if started.log:
            job.outputs.earlier = await in_thread(earlier_choices, started.log)
        outlined = await in_thread(outline, job.entry.payload)
        if outlined is not None:
            job.input.request = outlined.request
        kept = sum(len(other.entry.payload) for other in self.table.to_read())
        if kept + len(job.entry.payload) > _MOST_KEPT_BYTES:
            job.entry = replace(job.entry, payload=b"")

    async def read(self, job: Job) -> None:
        """Prepare a job that was put off: a suspect once it is isolated, a long job when it is its tenant's
        turn. This may end it. If the caller is cancelled the thread is abandoned, and the job is never
        written again.
        """
        assert job.input.put_off is not None, "it was read before"
        started, job.input.put_off = job.input.put_off, None
        await self.preparer.prepare(job, started)
        if job.phase is JobPhase.PREPARING:
            job.input.put_off = started
            self.table.changed.notify()
        self._take_read(job)

    async def read_with_images(self, job: Job, tokens: Sequence[ImageTokens]) -> None:
        """The images of a job that is PREPARING are held: complete it. One whose engine died with them has
        been read before, and goes on. `tokens`: of each image in its messages, in order.
        """
        started, job.input.put_off = job.input.put_off, None
        if started is None:
            job.input.images.files = {}
            job.move(JobPhase.READY)
            return
        await self.preparer.complete(job, started, tokens)
        self._take_read(job)

    def _take_read(self, job: Job) -> None:
        forget_input(job)
        if job.rows:  # the rows have the output of earlier attempts
            job.outputs.earlier = ()
        if job.phase is JobPhase.LOOKING_UP:
            self.lookup.add(job)
        if job.phase.has_ended and self.table.holds(job):
            self.table.conclude(job, job.end.state)

    def _given_up(self, job: Job) -> ErrorInfo | None:
        """Decided before the payload is read: reading it may be what kills workers."""
        counts = f"{job.attempt.died} times computing this job, {job.attempt.died_alone} times alone with it"
        if job.attempt.died_alone >= self.limits.max_died_alone:
            return ErrorInfo(code="engine_died", message=f"engines or workers died {counts}")
        if job.attempt.number - job.attempt.died > self.limits.max_attempts:  # deaths beside others: no
            message = f"given up at attempt {job.attempt.number}; engines or workers died {counts}"
            return ErrorInfo(code="too_many_attempts", message=message)
        return None


def timing_of(so_far: StartReply | JobRecord) -> Timing:
    """The times that earlier attempts have recorded."""
    names = ("submitted_ms", "started_ms", "compiled_ms", "admitted_ms", "first_token_ms")
    return Timing(**{name: getattr(so_far, name) for name in names})
