"""Deletes the server's data of ended jobs before they expire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millstream.client.session.job_reader import READ_JOBS, QueueJobs
from millstream.errors import JobError, NotReady
from millstream.wire import calls


async def forget_many(
    jobs: QueueJobs, names: Sequence[str], *, keep_cached: bool
) -> dict[str, bool | JobError]:
    """True: deleted; False: there was nothing (any more); NotReady for a job that has not ended: it stays."""
    named = await jobs.full_ids(names)
    found = {job_id for job_id in named.values() if job_id is not None}
    outcomes = await _forget(jobs, found, keep_cached)
    return {name: False if job_id is None else outcomes[job_id] for name, job_id in named.items()}


async def _forget(jobs: QueueJobs, job_ids: Iterable[str], keep_cached: bool) -> dict[str, bool | JobError]:
    keys = await jobs.keys_of(job_ids)
    outcomes: dict[str, bool | JobError] = {}
    ids = list(keys)
    for start in range(0, len(ids), READ_JOBS):
        batch = ids[start : start + READ_JOBS]
        with jobs.session.reach():
            requests = [
                calls.forget(keys[job_id], job_id=job_id, keep_cached=keep_cached) for job_id in batch
            ]
            for job_id, reply in zip(batch, await calls.run_many(jobs.session.redis, requests), strict=True):
                if isinstance(reply, Exception):
                    raise reply
                outcomes[job_id] = _outcome(job_id, reply)
    return outcomes


def _outcome(job_id: str, reply: calls.Forgotten) -> bool | JobError:
    if reply.state is None:
        return reply.deleted
    return NotReady(job_id, reply.state, "it has not ended and cannot be forgotten; cancel it first")
