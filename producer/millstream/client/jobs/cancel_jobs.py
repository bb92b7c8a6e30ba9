"""Cancelling many jobs in few round trips."""

from __future__ import annotations

from collections.abc import Iterable

from millstream.client.session.job_reader import READ_JOBS, QueueJobs
from millstream.wire import calls
from millstream.wire.keys import shard_of
from millstream.wire.messages.script_replies import CancelOutcome


async def cancel_many(jobs: QueueJobs, names: Iterable[str]) -> dict[str, CancelOutcome]:
    """Outcomes by full or own id, as it was given; NOT_FOUND is an outcome, too."""
    queue, ttl_ms = (await jobs.info()).keys(jobs.queue), jobs.session.options.result_ttl_ms
    full_ids = await jobs.full_ids(names)
    outcomes = dict.fromkeys(full_ids, CancelOutcome.NOT_FOUND)
    known = [(name, job_id) for name, job_id in full_ids.items() if job_id is not None]
    for start in range(0, len(known), READ_JOBS):
        batch = known[start : start + READ_JOBS]
        requests = [
            calls.cancel(queue.shard(shard_of(job_id)), job_id=job_id, ttl_ms=ttl_ms) for _, job_id in batch
        ]
        with jobs.session.reach():
            replies = await calls.run_many(jobs.session.redis, requests)
            for (name, _), reply in zip(batch, replies, strict=True):
                if isinstance(reply, Exception):
                    raise reply
                outcomes[name] = reply
    return outcomes
