"""Cancelling many jobs in few round trips."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.client.jobs import READ_JOBS, Jobs
from millstream.wire import calls
from millstream.wire.keys import job_id_of, shard_of
from millstream.wire.replies import CancelOutcome


async def cancel_many(jobs: Jobs, own_ids: Sequence[str]) -> dict[str, CancelOutcome]:
    """By own id; NOT_FOUND is an outcome, too."""
    info = await jobs.info()
    queue, ttl_ms = info.keys(jobs.queue), jobs.session.options.result_ttl_ms
    outcomes: dict[str, CancelOutcome] = {}
    for start in range(0, len(own_ids), READ_JOBS):
        batch = own_ids[start : start + READ_JOBS]
        job_ids = [job_id_of(own_id, info.shards) for own_id in batch]
        requests = [
            calls.cancel(queue.shard(shard_of(job_id)), job_id=job_id, ttl_ms=ttl_ms) for job_id in job_ids
        ]
        with jobs.session.reach():
            replies = await calls.run_many(jobs.session.redis, requests)
            for own_id, reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception):
                    raise reply
                outcomes[own_id] = reply
    return outcomes
