"""Releases jobs that this worker cannot finish."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.messages.script_replies import EndOutcome
from millstream.wire.timing import doubled
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_TRIES = 3
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """How long a job whose engine died is parked: doubled with each death, up to `most_s`, with jitter."""

    first_s: float
    most_s: float

    def delay_ms(self, deaths: int) -> int:
        longest = doubled(self.first_s, self.most_s, max(deaths, 1))
        return round(1000 * longest * random.uniform(0.5, 1.0))


async def release_jobs(
    consumer: Consumer,
    table: JobTable,
    metrics: Metrics,
    left: Callable[[], Sequence[Job]],
    *,
    engine_works: bool = True,
    delay: RetryDelay | None = None,
) -> None:
    """Release the jobs that `left` returns, charged with the engines that died with them here. With `delay`,
    jobs that lost an engine are parked for that time instead. If no engine ever computed a step, at most one
    death is charged to each job. Jobs for which the server does not answer are taken over when their lease
    expires.
    """
    for _ in range(_TRIES):
        jobs = left()
        try:
            replies = await calls.run_many(
                consumer.redis, [_call(job, consumer.name, engine_works, delay) for job in jobs]
            )
        except (RedisError, OSError) as error:
            _log.warning("jobs not released yet", jobs=len(jobs), error=str(error))
            replies = []
        for job, reply in zip(jobs, replies, strict=False):
            if isinstance(reply, EndOutcome):
                table.drop(job)
                metrics.released.inc()
        if not left():
            return
        await asyncio.sleep(_PAUSE_S)


def _call(job: Job, owner: str, engine_works: bool, delay: RetryDelay | None) -> calls.ScriptCall[EndOutcome]:
    claim = job.claim(owner)
    known: dict[str, Any] = {
        "lane": job.entry.lane,
        "died": job.attempt.losses if engine_works else job.attempt.died + min(job.attempt.deaths, 1),
        "died_alone": job.attempt.losses_alone,
    }
    if delay is not None and job.attempt.deaths:
        return calls.retry(job.shard, claim, delay_ms=delay.delay_ms(job.attempt.losses), **known)
    return calls.release(job.shard, claim, **known)
