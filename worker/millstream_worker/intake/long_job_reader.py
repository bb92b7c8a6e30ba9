"""Reads long jobs beside the intake loop, so that short jobs and those of other tenants do not wait behind
them.

A job that was put off is in the table, unread, with its lease. If many bytes wait, its message is dropped and
fetched again later. Tenants take turns, each with one job at a time, `interactive` before `batch`. Few are
read at once, and none while the waiting inputs would fill the KV pool, or a suspect runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field, replace

from redis.exceptions import RedisError

from millstream.logs.failure_log import FailureLog
from millstream.wire import calls
from millstream.wire.keys import LANES
from millstream.wire.messages.job_messages import State
from millstream.wire.server_errors import is_outage
from millstream_worker.intake.capacity import Capacity
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import ENTRY_LOST
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch

_AT_ONCE = 2
_LARGE_BYTES = 2**20  # larger ones are read one at a time: decoding takes several times as much
_LOOK_S = 1.0  # between two turns; work wakes it sooner
_PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class LongJobReader:
    """`read` prepares a job."""

    consumer: Consumer
    table: JobTable
    queue: EngineQueue
    capacity: Capacity
    watch: LoopWatch
    _: KW_ONLY
    read: Callable[[Job], Awaitable[None]]
    _unread: FailureLog = field(default_factory=lambda: FailureLog("long jobs not read yet"))
    _being_read: list[Job] = field(default_factory=list)
    _readers: set[asyncio.Task[None] | None] = field(default_factory=set)  # waiting for a thread
    # per tenant with jobs here: the higher, the later its last turn
    _turns: dict[str, int] = field(default_factory=dict)
    _turn: int = 0
    _stopping: bool = False

    def stop(self) -> None:
        self._stopping = True
        self.table.changed.notify()
        for reader in filter(None, self._readers):
            reader.cancel()

    async def run(self) -> None:
        """Until `stop`: unread jobs are then released by the drain, and nobody waits for the threads that are
        reading.
        """
        with self.watch:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._read_on(), name="reading")

    async def _read_on(self) -> None:
        while not self._stopping:
            self.watch.turn()
            job = self._next()
            if job is None:
                await self.table.changed.wait(_LOOK_S)
                continue
            self._being_read.append(job)
            try:
                await self._give_turn(job)
            finally:
                self._being_read.remove(job)
                self.table.changed.notify()

    def _next(self) -> Job | None:
        if self.queue.isolated is not None or self.capacity.flooded:
            return None
        waiting = [job for job in self.table.to_read() if job not in self._being_read]
        tenants = {job.request.tenant for job in (*waiting, *self._being_read)}
        known = {tenant: turn for tenant, turn in self._turns.items() if tenant in tenants}
        first = min(known.values(), default=self._turn)  # new tenants do not overtake others
        self._turns = dict.fromkeys(tenants, first) | known
        free = [job for job in waiting if self._may_begin(job)]
        if not free:
            return None
        job = min(free, key=self._place)
        self._turn += 1
        self._turns[job.request.tenant] = self._turn
        return job

    def _may_begin(self, job: Job) -> bool:
        if any(other.request.tenant == job.request.tenant for other in self._being_read):
            return False
        return job.input.unread_bytes <= _LARGE_BYTES or all(
            other.input.unread_bytes <= _LARGE_BYTES for other in self._being_read
        )

    def _place(self, job: Job) -> tuple[int, int]:
        return LANES.index(job.entry.lane), self._turns[job.request.tenant]

    async def _give_turn(self, job: Job) -> None:
        if not job.entry.payload and not await self._fetch(job):
            return
        if job.phase is not JobPhase.UNREAD or not self.table.holds(job):
            return
        reader = asyncio.current_task()
        self._readers.add(reader)
        try:
            with self.queue.no_isolation():
                await self.read(job)
        finally:
            self._readers.discard(reader)
        self.queue.hand_over()

    async def _fetch(self, job: Job) -> bool:
        """Fetch the message again. False: it is not needed any more, or it was deleted."""
        while not self._stopping and self.table.holds(job) and job.phase is JobPhase.UNREAD:
            self.watch.turn()
            entry_id = job.entry.entry_id
            try:
                rows = await self.consumer.redis.xrange(job.shard.lane(job.entry.lane), entry_id, entry_id)
            except (RedisError, OSError) as error:
                trouble = self.consumer.outage if is_outage(error) else self._unread
                trouble.failed(doing="reading of long jobs", of_job=job.id, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self.table.holds(job):
                return False
            if rows:
                job.entry = replace(job.entry, payload=calls.lane_entry(job.entry.lane, *rows[0]).payload)
                return True
            self.table.conclude(job, State.FAILED, ENTRY_LOST)
        return False
