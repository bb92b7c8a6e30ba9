"""Tokens and ends from the table of jobs to Redis: all that is due goes out in one round trip, and the next
round begins when it is answered. So a job never has two writes under way, and under load rounds grow instead
of multiplying.

What the server refuses or does not answer stays in memory and is sent again; the scripts know what they have
seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.messages import ErrorInfo, State
from millstream.wire.replies import AppendOutcome, AppendReply, EndOutcome
from millstream_worker.clock import ServerClock
from millstream_worker.delivery.settling import FLUSH_STEPS
from millstream_worker.jobs import Job, Phase
from millstream_worker.metrics import Metrics
from millstream_worker.refusals import MOST_REFUSALS, is_damage, is_full
from millstream_worker.table import JobTable
from millstream_worker.vitals import Vital

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.05
_IDLE_S = 1.0
_LONGEST_PAUSE_S = 2.0
_MOST_BYTES = 4 * 1024 * 1024  # sent at once; a round that never gets through would come again as it was

_LEVELS = {
    State.COMPLETED: logging.DEBUG,
    State.CANCELLED: logging.INFO,
    State.EXPIRED: logging.INFO,
    State.FAILED: logging.WARNING,
}

Call = calls.Call[AppendReply | EndOutcome]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is written, and for how long it is kept."""

    streamed_s: float
    unstreamed_s: float
    result_ttl_ms: int
    max_dead: int


class Writer:
    def __init__(
        self,
        redis: Any,
        owner: str,
        table: JobTable,
        clock: ServerClock,
        metrics: Metrics,
        pace: Pace,
        vital: Vital | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        log_payloads: bool = False,
    ) -> None:
        self._redis = redis
        self._log_payloads = log_payloads
        self._owner = owner
        self._table = table
        self._clock = clock
        self._metrics = metrics
        self._pace = pace
        self._vital = vital or Vital("writer", inf)
        self._monotonic = monotonic
        self._pause_s = 0.0
        self._stopping = False
        self.model = ""  # for results; known when an engine is ready

    async def run(self) -> None:
        """Write until `stop`."""
        with self._vital:
            while not self._stopping:
                await self._wait()
                await self.write(self._due())

    def stop(self) -> None:
        self._stopping = True
        self._table.to_write.set()

    async def write_all(self) -> None:
        """Write everything there is, once: what is left when the worker goes."""
        await self.write(list(self._table))

    async def write(self, jobs: Sequence[Job]) -> None:
        """One round for these jobs: in one go, unless that is more than a slow line takes in its time."""
        planned: list[tuple[Job, list[Call]]] = []
        size = 0
        for job in jobs:
            batch = self._calls(job) if self._table.holds(job) else []
            if batch:
                planned.append((job, batch))
                size += _size(batch)
            if size >= _MOST_BYTES:
                await self._send(planned)
                planned, size = [], 0
        if planned:
            await self._send(planned)

    async def _send(self, planned: Sequence[tuple[Job, Sequence[Call]]]) -> None:
        self._vital.turn()
        try:
            replies = await calls.run_many(self._redis, [call for _, batch in planned for call in batch])
        except (RedisError, OSError) as error:
            replies = [error] * sum(len(batch) for _, batch in planned)
        self._pause_s = self._next_pause(replies)
        place = 0
        for job, batch in planned:
            for reply in replies[place : place + len(batch)]:
                self._answered(job, reply)
            place += len(batch)

    async def _wait(self) -> None:
        self._vital.turn()
        timeout = self._pace.streamed_s if len(self._table) else _IDLE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._table.to_write.wait()
        self._table.to_write.clear()

    def _due(self) -> list[Job]:
        now, now_ms = self._monotonic(), self._clock.now_ms()
        return [job for job in self._table if now >= job.not_before and self._is_due(job, now, now_ms)]

    def _is_due(self, job: Job, now: float, now_ms: int) -> bool:
        if job.being_read:
            return False
        if job.phase is Phase.ENDED:
            return True
        deadline_ms = job.request.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            self._table.conclude(job, State.EXPIRED)
            return True
        return now >= job.next_flush or (job.streamed and job.untold_tokens >= FLUSH_STEPS)

    def _calls(self, job: Job) -> list[Call]:
        """What to send for a job now: the bodies that are not acknowledged, and its end if nothing stands
        before it.
        """
        if job.acknowledged == len(job.written) or job.phase is Phase.ENDED:
            job.take_delta()
        job.next_flush = self._monotonic() + (
            self._pace.streamed_s if job.streamed else self._pace.unstreamed_s
        )
        if job.phase is not Phase.ENDED:
            return self._appends(job, len(job.written))
        # The last body goes with the end, but not with a dead letter's. All others go before it.
        before = len(job.written) if job.letter is not None else len(job.written) - 1
        return self._appends(job, before) or [self._end(job)]

    def _appends(self, job: Job, end: int) -> list[Call]:
        """Of the bodies before `end` as many as go out at once."""
        stop, size = job.acknowledged, 0
        while stop < end and size < _MOST_BYTES:
            size += len(job.written[stop])
            stop += 1
        return [
            calls.append(
                job.shard,
                job_id=job.id,
                attempt=job.attempt,
                owner=self._owner,
                entry_id=job.entry.entry_id,
                seq=place + 1,
                body=job.written[place],
                publish=True,
            )
            for place in range(job.acknowledged, stop)
        ]

    def _end(self, job: Job) -> Call:
        now_ms = self._clock.now_ms()
        if job.streamed and job.output_tokens:  # published with the end at the latest
            self._tell_first_token(job, now_ms)
            if job.timing.last_token_ms is not None:
                job.tell_last_token(now_ms)
        result = job.result(self.model, now_ms)
        if job.letter is not None:
            return calls.bury(
                job.shard,
                job_id=job.id,
                lane=job.entry.lane,
                attempt=job.attempt,
                owner=self._owner,
                entry_id=job.entry.entry_id,
                reason=job.letter,
                result=result,
                ttl_ms=self._pace.result_ttl_ms,
                max_dead=self._pace.max_dead,
            )
        open_body = job.written[-1] if job.acknowledged < len(job.written) else None
        return calls.finish(
            job.shard,
            job_id=job.id,
            lane=job.entry.lane,
            attempt=job.attempt,
            owner=self._owner,
            entry_id=job.entry.entry_id,
            state=job.state,
            result=result,
            seq=len(job.written) + (open_body is None),
            delta=open_body,
            ttl_ms=self._pace.result_ttl_ms,
        )

    def _answered(self, job: Job, reply: AppendReply | EndOutcome | Exception) -> None:
        if not self._table.holds(job):
            return
        match reply:
            case AppendReply(AppendOutcome.FENCED) | EndOutcome.FENCED:
                self._fenced(job)
            case AppendReply(outcome, last_seq):
                self._appended(job, outcome, last_seq)
            case EndOutcome.GAP:
                self._lost_log(job)
                job.acknowledged = 0  # the next append tells where the log really ends
                self._table.to_write.set()
            case EndOutcome():
                self._ended(job)
            case Exception():
                self._refused(job, reply)

    def _appended(self, job: Job, outcome: AppendOutcome, last_seq: int) -> None:
        if outcome is AppendOutcome.GAP:
            self._lost_log(job)
        job.acknowledged = min(last_seq, len(job.written))
        if job.streamed and job.acknowledged:
            self._tell_first_token(job, self._clock.now_ms())
        if outcome is AppendOutcome.CANCELLED:
            self._table.conclude(job, State.CANCELLED)
            self._close_log(job)
        if job.acknowledged < len(job.written) or job.phase is Phase.ENDED:
            self._table.to_write.set()

    def _close_log(self, job: Job) -> None:
        """Nothing more is appended: what is left goes with the end. A dead letter's takes nothing along; the
        result has it.
        """
        if job.letter is None:
            job.merge_open()
        else:
            del job.written[job.acknowledged :]

    def _lost_log(self, job: Job) -> None:
        self._metrics.gap_fills.inc()
        _log.warning("token log lost its end; it is written again", job_id=job.id, attempt=job.attempt)

    def _ended(self, job: Job) -> None:
        self._table.drop(job)
        self._metrics.ended(job.state, job.timing, job.output_tokens)
        if job.letter is not None:
            self._metrics.dead_lettered.inc()
        _log.log(
            _LEVELS[job.state],
            "job ended",
            job_id=job.id,
            attempt=job.attempt,
            state=job.state.value,
            output_tokens=job.output_tokens,
            **({"error": job.error.code, "field": job.error.field} if job.error else {}),
            **(_payload(job) if self._log_payloads else {}),
        )

    def _fenced(self, job: Job) -> None:
        self._table.drop(job)
        self._metrics.fenced.inc()
        _log.warning("job belongs to another attempt now", job_id=job.id, attempt=job.attempt)

    def _refused(self, job: Job, error: Exception) -> None:
        """The server did not take it, or did not answer: it is sent again after a pause; the row runs on."""
        self._metrics.write_troubles.inc()
        job.not_before = self._monotonic() + self._pause_s
        job.refusals = job.refusals + 1 if is_damage(error) else 0
        if job.refusals >= MOST_REFUSALS:
            self._give_up(job, error)
        if is_full(error) and job.phase is Phase.ENDED:
            self._close_log(job)  # the end passes where the log does not

    def _give_up(self, job: Job, error: Exception) -> None:
        """Its keys are damaged. Where that is the log, its end can still be written; else it is let go, for
        nobody can write to it.
        """
        job.refusals = 0
        if job.phase is Phase.ENDED and len(job.written) - job.acknowledged <= 1:
            _log.error("job let go, its keys are damaged", job_id=job.id, error=str(error))
            self._table.drop(job)
            return
        message = f"the job's keys are damaged: {error}"
        self._table.conclude(job, State.FAILED, ErrorInfo(code="log_damaged", message=message))
        self._close_log(job)

    def _next_pause(self, replies: Sequence[AppendReply | EndOutcome | Exception]) -> float:
        trouble = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if trouble is None:
            if self._pause_s:
                _log.info("server takes writes again")
            return 0.0
        if not self._pause_s:
            _log.warning("server does not take writes; tokens are kept here", error=str(trouble))
        pause = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        return pause * random.uniform(0.75, 1.25)

    def _tell_first_token(self, job: Job, now_ms: int) -> None:
        if job.tell_first_token(now_ms):
            self._metrics.first_token(job.timing)


def _size(batch: Sequence[Call]) -> int:
    return sum(len(arg) for call in batch for arg in call.args if isinstance(arg, bytes))


def _payload(job: Job) -> dict[str, Any]:
    """What is logged only where that is asked for. An error's message may quote the request."""
    texts = [row.choice().get("text", "") for row in job.rows]
    return {"texts": texts} | ({"message": job.error.message} if job.error else {})
