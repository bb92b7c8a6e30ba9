"""Fetches the message of a held job again, which was dropped to save memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from millstream.logs.failure_log import FailureLog
from millstream.wire import calls
from millstream.wire.messages.job_messages import State
from millstream.wire.server_errors import is_outage
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import ENTRY_LOST
from millstream_worker.jobs.table import JobTable

_PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class MessageFetch:
    consumer: Consumer
    table: JobTable
    _failures: FailureLog = field(default_factory=lambda: FailureLog("long jobs not read yet"))

    async def payload(self, job: Job, needed: Callable[[], bool]) -> bytes:
        """Returns its message; empty if it is not `needed` any more, or was deleted, which ends the job."""
        phase = job.phase
        while needed() and self.table.holds(job) and job.phase is phase:
            entry_id = job.entry.entry_id
            try:
                rows = await self.consumer.redis.xrange(job.shard.lane(job.entry.lane), entry_id, entry_id)
            except (RedisError, OSError) as error:
                trouble = self.consumer.outage if is_outage(error) else self._failures
                trouble.failed(doing="reading of messages", of_job=job.id, error=str(error))
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self.table.holds(job):
                return b""
            if rows:
                return calls.lane_entry(job.entry.lane, *rows[0]).payload
            self.table.conclude(job, State.FAILED, ENTRY_LOST)
        return b""
