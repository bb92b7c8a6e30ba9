"""From a started entry to a job in the table: decoded, tokenized, taken up from its log, or answered with why
it cannot be computed. A request that is wrong is a failed result, never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import Choice, ErrorInfo, Request, State, Timing
from millstream.wire.record import merged_choices
from millstream.wire.replies import JobRecord, LaneEntry, LogEntry, StartReply
from millstream.wire.versions import FIRST_VERSION, TAKEN
from millstream_worker.capacity import Capacity
from millstream_worker.engine_queue import EngineQueue
from millstream_worker.intake.outline import outline
from millstream_worker.intake.preparation import JobBounds, LogDamaged, forget_input, prepare
from millstream_worker.jobs import Job, Phase
from millstream_worker.served_model import ModelSlot
from millstream_worker.table import JobTable
from millstream_worker.threads import in_thread

_log = structlog.get_logger(__name__)
_LONG_BYTES = 4096  # past that reading and tokenizing would hold up the loop
_BESIDE_BYTES = 64 * 1024  # past that it would hold up whoever comes behind
_MOST_KEPT_BYTES = 8 * 2**20  # of messages that wait to be read; others are fetched again
UNREADABLE = Request(token_ids=(0,))  # stands in for a payload that cannot be decoded


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_died` deaths of engines and workers make a job a suspect, which runs alone; `max_died_alone` of
    those that had nothing else make it a dead letter. Deaths in company never do.
    """

    max_attempts: int
    max_died: int
    max_died_alone: int


class Admission:
    def __init__(
        self,
        table: JobTable,
        queue: EngineQueue,
        capacity: Capacity,
        model: ModelSlot,
        limits: Limits,
        bounds: JobBounds,
        *,
        log_payloads: bool = False,
    ) -> None:
        self._table = table
        self._queue = queue
        self._capacity = capacity
        self._model = model
        self._limits = limits
        self._bounds = bounds
        self._log_payloads = log_payloads

    async def admit(self, shard: ShardKeys, entry: LaneEntry, started: StartReply) -> None:
        timing = timing_of(started)
        job = Job(
            shard, entry, UNREADABLE, started.attempt, started.died, timing, started.died_alone, started.seed
        )
        job.alone = job.died >= self._limits.max_died
        given_up = self._given_up(job)
        if given_up is not None:
            job.told = _told(started.log)
            job.end(State.FAILED, given_up, letter=given_up.code)
        elif job.alone:
            job.told, job.unread = _told(started.log), started
        elif _size(job, started) > _BESIDE_BYTES and job.entry.version in TAKEN:
            with self._queue.reading():  # a part of it
                await self._put_off(job, started)
        else:
            with self._queue.reading():
                await self._read(job, started)
        if started.cancelled:
            job.end(State.CANCELLED)
        shows = self._log_payloads and job.unread is None
        shown = {"request": job.request.model_dump(exclude_defaults=True)} if shows else {}
        _log.debug("job started", job_id=job.id, attempt=job.attempt, prompt_tokens=len(job.prompt), **shown)
        forget_input(job)
        self._table.take(job)

    async def _put_off(self, job: Job, started: StartReply) -> None:
        """It is read beside all others. Until then only its tenant counts, and what its end would tell."""
        job.unread, job.unread_bytes = started, _size(job, started)
        job.told = await asyncio.to_thread(_told, started.log)
        outlined = await asyncio.to_thread(outline, job.entry.payload)
        if outlined is not None:
            job.request = outlined.request
        kept = sum(len(other.entry.payload) for other in self._table.to_read())
        if kept + len(job.entry.payload) > _MOST_KEPT_BYTES:
            job.entry = replace(job.entry, payload=b"")

    async def read(self, job: Job) -> None:
        """What was put off: for a suspect until it is alone, for a long job until it is its tenant's turn. It
        may end by it. Whoever is cancelled meanwhile gives the thread up, and the job is never written again.
        """
        assert job.unread is not None, "it was read before"
        started, job.unread, job.being_read = job.unread, None, True
        await self._read(job, started)
        job.being_read = False
        forget_input(job)
        if job.rows:  # they know it themselves
            job.told = ()
        if job.phase is Phase.ENDED and self._table.holds(job):
            self._table.conclude(job, job.state)

    async def _read(self, job: Job, started: StartReply) -> None:
        served = self._model.get()
        if job.entry.version not in TAKEN:
            problem = f"there is no version {job.entry.version}; send {FIRST_VERSION} or a later one"
            _refuse(job, InvalidRequest("version", job.entry.version, problem))
            return
        try:
            if _size(job, started) > _LONG_BYTES:
                await in_thread(prepare, job, started, served.text, served.info, self._bounds)
            else:
                prepare(job, started, served.text, served.info, self._bounds)
        except InvalidRequest as error:
            _refuse(job, error)
        except LogDamaged as error:
            fail(job, "log_damaged", str(error))
        else:
            self._capacity.learn(len(job.prompt))
            if all(row.reason is not None for row in job.rows):
                job.end(State.COMPLETED)  # only its end was not written
        if not job.rows:  # readers have had this
            job.told = _told(started.log)

    def _given_up(self, job: Job) -> ErrorInfo | None:
        """Decided before the payload is looked at: reading it may be what kills."""
        counts = f"{job.died} times computing this job, {job.died_alone} times alone with it"
        if job.died_alone >= self._limits.max_died_alone:
            return ErrorInfo(code="engine_died", message=f"engines or workers died {counts}")
        if job.attempt - job.died > self._limits.max_attempts:  # those that died were not its fault so far
            message = f"given up at attempt {job.attempt}; engines or workers died {counts}"
            return ErrorInfo(code="too_many_attempts", message=message)
        return None


def _size(job: Job, started: StartReply) -> int:
    return len(job.entry.payload) + sum(len(entry.body) for entry in started.log)


def _told(log: Sequence[LogEntry]) -> tuple[Choice, ...]:
    """What earlier attempts have told, without a look at the request."""
    try:
        return merged_choices(log)
    except ProtocolError:
        return ()


def timing_of(so_far: StartReply | JobRecord) -> Timing:
    """What earlier attempts came to counts."""
    return Timing(
        submitted_ms=so_far.submitted_ms,
        started_ms=so_far.started_ms,
        admitted_ms=so_far.admitted_ms,
        first_token_ms=so_far.first_token_ms,
    )


def _refuse(job: Job, error: InvalidRequest) -> None:
    job.end(State.FAILED, ErrorInfo(code="bad_request", message=str(error), field=error.field))


def fail(job: Job, code: str, message: str) -> None:
    job.end(State.FAILED, ErrorInfo(code=code, message=message))
