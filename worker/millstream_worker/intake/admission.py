"""From a delivered entry to a job in the table: started, decoded, tokenized, taken up from its log, or
answered with why it cannot be computed. A request that is wrong is a failed result, never an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire import calls
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import Choice, ErrorInfo, Request, State, Timing
from millstream.wire.record import merged_choices, read_job
from millstream.wire.replies import JobRecord, LaneEntry, LogEntry, StartReply
from millstream.wire.versions import FIRST_VERSION, TAKEN
from millstream_worker.capacity import Capacity
from millstream_worker.engine.config import EngineInfo
from millstream_worker.engine_link import EnginePort
from millstream_worker.intake.outline import outline
from millstream_worker.intake.preparation import JobBounds, LogDamaged, forget_input, prepare
from millstream_worker.jobs import Job, Phase
from millstream_worker.refusals import is_damage, is_outage
from millstream_worker.table import JobTable
from millstream_worker.text import TextModel
from millstream_worker.threads import in_thread
from millstream_worker.trouble import Trouble, server_trouble

_log = structlog.get_logger(__name__)
_LONG_BYTES = 4096  # past that reading and tokenizing would hold up the loop
_BESIDE_BYTES = 64 * 1024  # past that it would hold up whoever comes behind
_MOST_KEPT_BYTES = 8 * 2**20  # of messages that wait to be read; others are fetched again
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_LOOK_S = 0.5  # between two looks whether the worker is stopping
_UNREADABLE = Request(token_ids=(0,))  # stands in for a payload that cannot be decoded


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_died` deaths of engines and workers make a job a suspect, which runs alone; `max_died_alone` of
    those that had nothing else make it a dead letter. Deaths in company never do.
    """

    max_attempts: int
    max_died: int
    max_died_alone: int


class Admission:
    """`ready` is called with what the engine can do before the first entry is taken."""

    def __init__(
        self,
        redis: Any,
        owner: str,
        table: JobTable,
        engine: EnginePort,
        capacity: Capacity,
        limits: Limits,
        bounds: JobBounds,
        *,
        log_payloads: bool = False,
        outage: Trouble | None = None,
    ) -> None:
        self._outage = outage or server_trouble()
        self._unstarted = Trouble("jobs not started yet")
        self._damage = Trouble("keys of jobs are damaged; the jobs are left alone", level="error")
        self._redis = redis
        self._owner = owner
        self._table = table
        self._engine = engine
        self._capacity = capacity
        self._limits = limits
        self._bounds = bounds
        self._log_payloads = log_payloads
        self._text: TextModel | None = None
        self._info: EngineInfo | None = None

    def ready(self, text: TextModel, info: EngineInfo) -> None:
        self._text, self._info = text, info

    async def take(
        self, shard: ShardKeys, entries: Sequence[LaneEntry], stopping: Callable[[], bool]
    ) -> list[LaneEntry]:
        """Start these entries and hold their jobs. Answers the entries that are left alone: their version is
        not one this worker takes. While the server takes no writes it is asked again, until `stopping`:
        entries not started then are given back. At maxmemory one gets through where none of this shard runs
        here, so that a server that is full of what waits empties itself.
        """
        self._table.expect(shard, entries)  # tokenizing many long inputs takes longer than a lease
        try:
            known = [entry for entry in entries if not _is_stranger(entry)]
            await self._start_all(shard, known, stopping)
            return await self._leave_strangers(shard, entries)
        finally:
            self._table.expect_no_more(shard, entries)

    async def _start_all(
        self, shard: ShardKeys, entries: Sequence[LaneEntry], stopping: Callable[[], bool]
    ) -> None:
        left = list(entries)
        pause = _FIRST_PAUSE_S
        nonces = {entry.entry_id: uuid4().hex for entry in left}  # the same for every repetition
        while left:
            before = len(left)
            left = await self._start(shard, left, nonces, stopping)
            if len(left) < before:
                pause = _FIRST_PAUSE_S
            if left and stopping():
                await self.leave(shard, left)
                return
            if left:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _leave_strangers(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> list[LaneEntry]:
        strangers = [entry for entry in entries if _is_stranger(entry)]
        if strangers:
            _log.debug("jobs of another version left alone", jobs=len(strangers))
            await self.leave(shard, strangers)
        return strangers

    async def leave(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """Give back entries that were never started. What does not get through is taken over when it is
        overdue.
        """
        release = [
            calls.release(
                shard, job_id=e.job_id, lane=e.lane, attempt=None, owner=self._owner, entry_id=e.entry_id
            )
            for e in entries
        ]
        try:
            await calls.run_many(self._redis, release)
        except (RedisError, OSError) as error:
            _log.warning("entries not given back", entries=len(entries), error=str(error))

    async def _start(
        self,
        shard: ShardKeys,
        entries: Sequence[LaneEntry],
        nonces: dict[str, str],
        stopping: Callable[[], bool],
    ) -> list[LaneEntry]:
        """Answers the entries that have to be started again."""
        idle = not any(job.shard == shard for job in self._table)  # what runs elsewhere makes no room here
        starts = [
            calls.start(
                shard,
                job_id=entry.job_id,
                lane=entry.lane,
                entry_id=entry.entry_id,
                owner=self._owner,
                nonce=nonces[entry.entry_id],
                presses=idle and entry is entries[0],
            )
            for entry in entries
        ]
        try:
            replies = await calls.run_many(self._redis, starts)
        except (RedisError, OSError) as error:
            self._not_started(len(entries), error)
            return list(entries)
        again: list[tuple[LaneEntry, Exception | None]] = []
        for entry, reply in zip(entries, replies, strict=True):
            if isinstance(reply, ProtocolError):
                await self._fail_unreadable(shard, entry, reply)
            elif isinstance(reply, Exception) and is_damage(reply):
                self._damage.failed(of_job=entry.job_id, error=str(reply))
                self._table.expect_no_more(shard, [entry])
            elif isinstance(reply, Exception):
                again.append((entry, reply))
            elif reply.started and await self._may_read(stopping):
                await self._admit(shard, entry, reply)
                await self._let_engine_read(stopping)
            elif reply.started:
                again.append((entry, None))  # the worker stops: it is given back
        if len(again) == len(entries) and again[0][1] is not None:
            self._not_started(len(again), again[0][1])
        return [entry for entry, _ in again]

    def _not_started(self, jobs: int, error: Exception) -> None:
        trouble = self._outage if is_outage(error) else self._unstarted
        trouble.failed(doing="start of jobs", jobs=jobs, error=str(error))

    async def _fail_unreadable(self, shard: ShardKeys, entry: LaneEntry, error: ProtocolError) -> None:
        """It is started, but the log that came with the answer is none."""
        try:
            record = await read_job(self._redis, shard, entry.job_id)
        except (RedisError, OSError, ProtocolError):
            return  # the entry is pending with us: the reader finds it again
        if record is not None and record.owner == self._owner:
            timing = _timing(record)
            job = Job(shard, entry, _UNREADABLE, record.attempt, record.died, timing)
            _fail(job, "log_damaged", str(error))
            self._table.take(job)

    async def _may_read(self, stopping: Callable[[], bool]) -> bool:
        """Wait while a suspect has its turn; False where the worker stops before."""
        while self._table.lone is not None:
            if stopping():
                return False
            self._table.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._table.changed.wait()
        return True

    async def _let_engine_read(self, stopping: Callable[[], bool]) -> None:
        """Wait while the engine is far behind; one that hangs does not hold up a drain."""
        while not stopping() and not await self._engine.writable(_LOOK_S):
            continue

    async def _admit(self, shard: ShardKeys, entry: LaneEntry, started: StartReply) -> None:
        timing = _timing(started)
        job = Job(
            shard, entry, _UNREADABLE, started.attempt, started.died, timing, started.died_alone, started.seed
        )
        job.alone = job.died >= self._limits.max_died
        given_up = self._given_up(job)
        if given_up is not None:
            job.told = _told(started.log)
            job.end(State.FAILED, given_up, letter=given_up.code)
        elif job.alone:
            job.told, job.unread = _told(started.log), started
        elif _size(job, started) > _BESIDE_BYTES and job.entry.version in TAKEN:
            with self._table.reading():  # a part of it
                await self._put_off(job, started)
        else:
            with self._table.reading():
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
        assert self._text is not None, "entries are taken once an engine is ready"
        assert self._info is not None, "the same"
        if job.entry.version not in TAKEN:
            problem = f"there is no version {job.entry.version}; send {FIRST_VERSION} or a later one"
            _refuse(job, InvalidRequest("version", job.entry.version, problem))
            return
        try:
            if _size(job, started) > _LONG_BYTES:
                await in_thread(prepare, job, started, self._text, self._info, self._bounds)
            else:
                prepare(job, started, self._text, self._info, self._bounds)
        except InvalidRequest as error:
            _refuse(job, error)
        except LogDamaged as error:
            _fail(job, "log_damaged", str(error))
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


def _is_stranger(entry: LaneEntry) -> bool:
    """Other workers may take it. What none ever will is answered."""
    return entry.version not in TAKEN and entry.version >= FIRST_VERSION


def _told(log: Sequence[LogEntry]) -> tuple[Choice, ...]:
    """What earlier attempts have told, without a look at the request."""
    try:
        return merged_choices(log)
    except ProtocolError:
        return ()


def _timing(so_far: StartReply | JobRecord) -> Timing:
    """What earlier attempts came to counts."""
    return Timing(
        submitted_ms=so_far.submitted_ms,
        started_ms=so_far.started_ms,
        admitted_ms=so_far.admitted_ms,
        first_token_ms=so_far.first_token_ms,
    )


def _refuse(job: Job, error: InvalidRequest) -> None:
    job.end(State.FAILED, ErrorInfo(code="bad_request", message=str(error), field=error.field))


def _fail(job: Job, code: str, message: str) -> None:
    job.end(State.FAILED, ErrorInfo(code=code, message=message))
