"""Writes tokens and ends of the held jobs to Redis. Each round sends everything that is due in one round
trip; the next begins after its replies. So no job ever has two writes in flight, and under load rounds grow
instead of multiplying.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.messages.job_messages import State
from millstream.wire.server_errors import is_outage
from millstream.wire.timing import Backoff, ServerClock, within
from millstream_worker.delivery.output_processor import FLUSH_STEPS
from millstream_worker.delivery.reply_handler import Reply, ReplyHandler
from millstream_worker.delivery.write_builder import MOST_BYTES, Call, WriteBuilder, size_of
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch

_log = structlog.get_logger(__name__)
_IDLE_S = 1.0


@dataclass(slots=True, eq=False)
class Writer:
    consumer: Consumer
    table: JobTable
    clock: ServerClock
    builder: WriteBuilder
    reply_handler: ReplyHandler
    watch: LoopWatch
    _refused: bool = False  # the server, which answers, refused the last round
    _backoff: Backoff = field(default_factory=Backoff)
    _stopping: bool = False

    async def run(self) -> None:
        """Write until `stop`."""
        with self.watch:
            while not self._stopping:
                await self._wait()
                await self.write(self._due())

    def stop(self) -> None:
        self._stopping = True
        self.table.to_write.set()

    async def write_all(self) -> None:
        """Write everything once, before the worker ends."""
        await self.write([job for job in self.table if not job.phase.is_being_read])

    async def write(self, jobs: Sequence[Job]) -> None:
        """One round for these jobs, sent in parts of MOST_BYTES."""
        planned: list[tuple[Job, list[Call]]] = []
        size = 0
        for job in jobs:
            batch = self.builder.calls(job) if self.table.holds(job) else []
            if batch:
                planned.append((job, batch))
                size += size_of(batch)
            if size >= MOST_BYTES:
                await self._send(planned)
                planned, size = [], 0
        if planned:
            await self._send(planned)

    async def _send(self, planned: Sequence[tuple[Job, Sequence[Call]]]) -> None:
        self.watch.turn()
        try:
            replies = await calls.run_many(
                self.consumer.redis, [call for _, batch in planned for call in batch]
            )
        except (RedisError, OSError) as error:
            replies = [error] * sum(len(batch) for _, batch in planned)
        pause_s = self._next_pause(replies)
        place = 0
        for job, batch in planned:
            for reply in replies[place : place + len(batch)]:
                self.reply_handler.take(job, reply, pause_s)
            place += len(batch)

    async def _wait(self) -> None:
        self.watch.turn()
        timeout = self.builder.policy.streamed_s if len(self.table) else _IDLE_S
        await within(self.table.to_write, timeout)
        self.table.to_write.clear()

    def _due(self) -> list[Job]:
        now, now_ms = time.monotonic(), self.clock.now_ms()
        return [job for job in self.table if now >= job.log.not_before and self._is_due(job, now, now_ms)]

    def _is_due(self, job: Job, now: float, now_ms: int) -> bool:
        if job.phase.is_being_read:
            return False
        if job.phase is JobPhase.ENDED:
            return True
        deadline_ms = job.request.deadline_ms
        if deadline_ms is not None and now_ms >= deadline_ms:
            self.table.conclude(job, State.EXPIRED)
            return True
        return now >= job.log.next_flush or (
            job.request.stream and job.outputs.unlogged_tokens >= FLUSH_STEPS
        )

    def _next_pause(self, replies: Sequence[Reply]) -> float:
        trouble = next((reply for reply in replies if isinstance(reply, Exception)), None)
        if trouble is None:
            if self._refused:
                _log.info("server takes writes again")
            self._refused = False
            self._backoff.reset()
            return 0.0
        if is_outage(trouble):
            self.consumer.outage.failed(doing="writing tokens; they are kept here", error=str(trouble))
        elif not self._refused:
            self._refused = True
            _log.warning("server does not take writes; tokens are kept here", error=str(trouble))
        return self._backoff.next_s()
