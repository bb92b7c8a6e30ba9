"""Reads long jobs beside the intake loop, so that short jobs and those of other tenants do not wait behind
them.

A job that was put off is in the table, unread, with its lease. If many bytes wait, its message is dropped and
fetched again later. Tenants take turns, each with one job at a time, `interactive` before `batch`. Few are
read at once, and none while the waiting inputs would fill the KV pool, or a suspect runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

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


class LongJobReader:
    """`read` prepares a job."""

    def __init__(
        self,
        consumer: Consumer,
        table: JobTable,
        queue: EngineQueue,
        capacity: Capacity,
        watch: LoopWatch,
        *,
        read: Callable[[Job], Awaitable[None]],
    ) -> None:
        self._outage = consumer.outage
        self._unread = FailureLog("long jobs not read yet")
        self._redis = consumer.redis
        self._table = table
        self._queue = queue
        self._capacity = capacity
        self._watch = watch
        self._read = read
        self._being_read: list[Job] = []
        self._readers: set[asyncio.Task[None] | None] = set()  # waiting for a thread
        self._turns: dict[str, int] = {}  # per tenant with jobs here: the higher, the later its last turn
        self._turn = 0
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self._table.changed.notify()
        for reader in filter(None, self._readers):
            reader.cancel()

    async def run(self) -> None:
        """Until `stop`: unread jobs are then released by the drain, and nobody waits for the threads that are
        reading.
        """
        with self._watch:
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._read_on(), name="reading")

    async def _read_on(self) -> None:
        while not self._stopping:
            self._watch.turn()
            job = self._next()
            if job is None:
                await self._changed()
                continue
            self._being_read.append(job)
            try:
                await self._give_turn(job)
            finally:
                self._being_read.remove(job)
                self._table.changed.notify()

    def _next(self) -> Job | None:
        if self._queue.isolated is not None or self._capacity.flooded:
            return None
        waiting = [job for job in self._table.to_read() if job not in self._being_read]
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
        if job.phase is not JobPhase.UNREAD or not self._table.holds(job):
            return
        reader = asyncio.current_task()
        self._readers.add(reader)
        try:
            with self._queue.no_isolation():
                await self._read(job)
        finally:
            self._readers.discard(reader)
        self._queue.hand_over()

    async def _fetch(self, job: Job) -> bool:
        """Fetch the message again. False: it is not needed any more, or it was deleted."""
        while not self._stopping and self._table.holds(job) and job.phase is JobPhase.UNREAD:
            self._watch.turn()
            entry_id = job.entry.entry_id
            try:
                rows = await self._redis.xrange(job.shard.lane(job.entry.lane), entry_id, entry_id)
            except (RedisError, OSError) as error:
                trouble = self._outage if is_outage(error) else self._unread
                trouble.failed(doing="reading of long jobs", of_job=job.id, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self._table.holds(job):
                return False
            if rows:
                job.entry = replace(job.entry, payload=calls.lane_entry(job.entry.lane, *rows[0]).payload)
                return True
            self._table.conclude(job, State.FAILED, ENTRY_LOST)
        return False

    async def _changed(self) -> None:
        await self._table.changed.wait(_LOOK_S)
