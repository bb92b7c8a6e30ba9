"""From a delivered entry to a job in the table: started, decoded, tokenized, taken up from its log, or
answered with why it cannot be computed. A request that is wrong is a failed result, never an exception.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire import calls
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import WIRE_VERSION, ErrorInfo, Request, State, Timing
from millstream.wire.record import read_job
from millstream.wire.replies import LaneEntry, StartReply
from millstream_worker.capacity import Capacity
from millstream_worker.engine.config import EngineInfo
from millstream_worker.engine_link import EnginePort
from millstream_worker.intake.preparation import LogDamaged, prepare
from millstream_worker.jobs import Job
from millstream_worker.table import JobTable
from millstream_worker.text import TextModel

_log = structlog.get_logger(__name__)
_LONG_BYTES = 4096  # past that reading and tokenizing would hold up the loop
_LONGEST_PAUSE_S = 2.0
_LOOK_S = 0.5  # between two looks whether the worker is stopping
_UNREADABLE = Request(token_ids=(0,))  # stands in for a payload that cannot be decoded


@dataclass(frozen=True, slots=True)
class Limits:
    """`max_died` crashes make a job a suspect. One that was then lost twice more with its whole worker is
    given up: it cannot be seen from outside whether it ran alone when a worker was killed, so once is not
    enough.
    """

    max_attempts: int
    max_died: int

    @property
    def hopeless(self) -> int:
        return self.max_died + 2


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
        *,
        log_payloads: bool = False,
    ) -> None:
        self._redis = redis
        self._owner = owner
        self._table = table
        self._engine = engine
        self._capacity = capacity
        self._limits = limits
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
        entries not started then are given back.
        """
        self._table.expect(shard, entries)  # tokenizing many long inputs takes longer than a lease
        try:
            known = [entry for entry in entries if entry.version == WIRE_VERSION]
            await self._start_all(shard, known, stopping)
            return await self._leave_strangers(shard, entries)
        finally:
            self._table.expect_no_more(shard, entries)

    async def _start_all(
        self, shard: ShardKeys, entries: Sequence[LaneEntry], stopping: Callable[[], bool]
    ) -> None:
        left = list(entries)
        pause = 0.05
        nonces = {entry.entry_id: uuid4().hex for entry in left}  # the same for every repetition
        while left:
            left = await self._start(shard, left, nonces, stopping)
            if left and stopping():
                await self.leave(shard, left)
                return
            if left:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _leave_strangers(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> list[LaneEntry]:
        strangers = [entry for entry in entries if entry.version != WIRE_VERSION]
        if strangers:
            _log.warning(
                "jobs of another version left alone", version=strangers[0].version, jobs=len(strangers)
            )
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
        starts = [
            calls.start(
                shard,
                job_id=entry.job_id,
                lane=entry.lane,
                entry_id=entry.entry_id,
                owner=self._owner,
                nonce=nonces[entry.entry_id],
            )
            for entry in entries
        ]
        try:
            replies = await calls.run_many(self._redis, starts)
        except (RedisError, OSError) as error:
            _log.warning("jobs not started yet", jobs=len(entries), error=str(error))
            return list(entries)
        again = []
        for entry, reply in zip(entries, replies, strict=True):
            if isinstance(reply, ProtocolError):
                await self._fail_unreadable(shard, entry, reply)
            elif isinstance(reply, Exception) and "WRONGTYPE" in str(reply):
                _log.error("job's keys are damaged; it is left alone", job_id=entry.job_id, error=str(reply))
                self._table.expect_no_more(shard, [entry])
            elif isinstance(reply, Exception):
                again.append((entry, reply))
            elif reply.started:
                await self._admit(shard, entry, reply)
                await self._let_engine_read(stopping)
        if again:
            _log.warning("jobs not started yet", jobs=len(again), error=str(again[0][1]))
        return [entry for entry, _ in again]

    async def _fail_unreadable(self, shard: ShardKeys, entry: LaneEntry, error: ProtocolError) -> None:
        """It is started, but the log that came with the answer is none."""
        try:
            record = await read_job(self._redis, shard, entry.job_id)
        except (RedisError, OSError, ProtocolError):
            return  # the entry is pending with us: the reader finds it again
        if record is not None and record.owner == self._owner:
            timing = Timing(submitted_ms=record.submitted_ms, first_token_ms=record.first_token_ms)
            job = Job(shard, entry, _UNREADABLE, record.attempt, record.died, timing)
            _fail(job, "log_damaged", str(error))
            self._table.take(job)

    async def _let_engine_read(self, stopping: Callable[[], bool]) -> None:
        """Wait while the engine is far behind; one that hangs does not hold up a drain."""
        while not await self._engine.writable(_LOOK_S) and not stopping():
            continue

    async def _admit(self, shard: ShardKeys, entry: LaneEntry, started: StartReply) -> None:
        timing = Timing(submitted_ms=started.submitted_ms, first_token_ms=started.first_token_ms)
        job = Job(shard, entry, _UNREADABLE, started.attempt, started.died, timing)
        given_up = self._given_up(job)
        if given_up is not None:
            job.end(State.FAILED, given_up, letter=given_up.code)
        else:
            await self._read(job, started)
        if started.cancelled:
            job.end(State.CANCELLED)
        job.alone = job.died >= self._limits.max_died
        shown = {"request": job.request.model_dump(exclude_defaults=True)} if self._log_payloads else {}
        _log.debug("job started", job_id=job.id, attempt=job.attempt, prompt_tokens=len(job.prompt), **shown)
        self._table.take(job)

    async def _read(self, job: Job, started: StartReply) -> None:
        assert self._text is not None, "entries are taken once an engine is ready"
        assert self._info is not None, "the same"
        try:
            if len(job.entry.payload) > _LONG_BYTES:
                await asyncio.to_thread(prepare, job, started, self._text, self._info)
            else:
                prepare(job, started, self._text, self._info)
        except ProtocolError as error:
            _fail(job, "bad_request", f"the request cannot be read: {error}")
        except InvalidRequest as error:
            _fail(job, "bad_request", str(error), error.field)
        except LogDamaged as error:
            _fail(job, "log_damaged", str(error))
        else:
            self._capacity.learn(len(job.prompt))
            if all(row.reason is not None for row in job.rows):
                job.end(State.COMPLETED)  # only its end was not written

    def _given_up(self, job: Job) -> ErrorInfo | None:
        """Decided before the payload is looked at: reading it may be what kills."""
        counts = f"at attempt {job.attempt}, after {job.died} attempts that took their worker with them"
        if job.died >= self._limits.hopeless:
            return ErrorInfo(code="engine_died", message=f"given up {counts}")
        if job.attempt > self._limits.max_attempts:
            return ErrorInfo(code="too_many_attempts", message=f"given up {counts}")
        return None


def _fail(job: Job, code: str, message: str, field: str | None = None) -> None:
    job.end(State.FAILED, ErrorInfo(code=code, message=message, field=field))
