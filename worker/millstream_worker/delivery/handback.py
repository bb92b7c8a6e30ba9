"""Giving jobs back: what a worker does with those it cannot finish."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.replies import EndOutcome
from millstream_worker.jobs import Job
from millstream_worker.metrics import Metrics
from millstream_worker.table import JobTable

_log = structlog.get_logger(__name__)
_TRIES = 3
_PAUSE_S = 0.2


async def hand_back(
    redis: Any, owner: str, table: JobTable, metrics: Metrics, *, retry_ms: int | None = None
) -> None:
    """Release every job of the table, uncharged. With `retry_ms`, those whose engine was lost
    are parked for so long instead, and charged. What the server does not answer is taken over when its lease
    is over.
    """
    for _ in range(_TRIES):
        jobs = list(table)
        try:
            replies = await calls.run_many(redis, [_call(job, owner, retry_ms) for job in jobs])
        except (RedisError, OSError) as error:
            _log.warning("jobs not given back yet", jobs=len(jobs), error=str(error))
            replies = []
        for job, reply in zip(jobs, replies, strict=False):
            if isinstance(reply, EndOutcome):
                table.drop(job)
                metrics.released.inc()
        if not len(table):
            return
        await asyncio.sleep(_PAUSE_S)


def _call(job: Job, owner: str, retry_ms: int | None) -> calls.Call[EndOutcome]:
    lane, entry_id = job.entry.lane, job.entry.entry_id
    if retry_ms is not None and job.charged:
        return calls.retry(
            job.shard,
            job_id=job.id,
            lane=lane,
            attempt=job.attempt,
            owner=owner,
            entry_id=entry_id,
            delay_ms=retry_ms,
            died=True,
        )
    return calls.release(
        job.shard, job_id=job.id, lane=lane, attempt=job.attempt, owner=owner, entry_id=entry_id
    )
