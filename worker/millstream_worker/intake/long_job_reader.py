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

from millstream_worker.intake.capacity import Capacity
from millstream_worker.intake.message_fetch import MessageFetch
from millstream_worker.intake.tenant_turns import TenantTurns
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch

_AT_ONCE = 2
_LARGE_BYTES = 2**20  # larger ones are read one at a time: decoding takes several times as much
_LOOK_S = 1.0  # between two turns; work wakes it sooner


@dataclass(slots=True, eq=False)
class LongJobReader:
    """`read` prepares a job; `takes_images`: there is room for the images of another one."""

    fetch: MessageFetch
    table: JobTable
    queue: EngineQueue
    capacity: Capacity
    watch: LoopWatch
    _: KW_ONLY
    read: Callable[[Job], Awaitable[None]]
    takes_images: Callable[[], bool] = lambda: True
    _being_read: list[Job] = field(default_factory=list)
    _readers: set[asyncio.Task[None] | None] = field(default_factory=set)  # waiting for a thread
    _turns: TenantTurns = field(default_factory=TenantTurns)
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
        self._turns.meet((*waiting, *self._being_read))
        free = [job for job in waiting if self._may_begin(job)]
        if not free:
            return None
        job = min(free, key=self._turns.place)
        self._turns.take(job)
        return job

    def _may_begin(self, job: Job) -> bool:
        if any(other.request.tenant == job.request.tenant for other in self._being_read):
            return False
        if job.input.image_bytes and not self.takes_images():
            return False
        return job.input.unread_bytes <= _LARGE_BYTES or all(
            other.input.unread_bytes <= _LARGE_BYTES for other in self._being_read
        )

    def _goes_on(self) -> bool:
        self.watch.turn()  # an outage is no standstill
        return not self._stopping

    async def _give_turn(self, job: Job) -> None:
        if not job.entry.payload:
            payload = await self.fetch.payload(job, self._goes_on)
            if not payload:
                return
            job.entry = replace(job.entry, payload=payload)
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
