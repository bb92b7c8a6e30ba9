"""Cancels many jobs, and deletes the data of ended ones before they expire, in few round trips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from millstream.client.session.job_reader import READ_JOBS, QueueJobs
from millstream.errors import JobError, NotReady
from millstream.wire import calls
from millstream.wire.calls import ScriptCall
from millstream.wire.keys import shard_of
from millstream.wire.messages.script_replies import CancelOutcome

R = TypeVar("R")


async def cancel_many(jobs: QueueJobs, names: Iterable[str]) -> dict[str, CancelOutcome]:
    """Outcomes by full or own id, as it was given; NOT_FOUND is an outcome, too."""
    queue, ttl_ms = (await jobs.info()).keys(jobs.queue), jobs.session.options.result_ttl_ms
    full_ids = await jobs.full_ids(names)
    known = {name: job_id for name, job_id in full_ids.items() if job_id is not None}

    def call_of(name: str) -> ScriptCall[CancelOutcome]:
        job_id = known[name]
        return calls.cancel(queue.shard(shard_of(job_id)), job_id=job_id, ttl_ms=ttl_ms)

    return dict.fromkeys(full_ids, CancelOutcome.NOT_FOUND) | await _run_all(jobs, list(known), call_of)


async def forget_many(
    jobs: QueueJobs, names: Sequence[str], *, keep_cached: bool
) -> dict[str, bool | JobError]:
    """True: deleted; False: there was nothing (any more); NotReady for a job that has not ended: it stays."""
    named = await jobs.full_ids(names)
    keys = await jobs.keys_of({job_id for job_id in named.values() if job_id is not None})

    def call_of(job_id: str) -> ScriptCall[calls.Forgotten]:
        return calls.forget(keys[job_id], job_id=job_id, keep_cached=keep_cached)

    replies = await _run_all(jobs, list(keys), call_of)
    return {name: False if id is None else _outcome(id, replies[id]) for name, id in named.items()}


async def _run_all(
    jobs: QueueJobs, names: Sequence[str], call_of: Callable[[str], ScriptCall[R]]
) -> dict[str, R]:
    replies: dict[str, R] = {}
    for start in range(0, len(names), READ_JOBS):
        batch = names[start : start + READ_JOBS]
        with jobs.session.reach():
            found = await calls.run_many(jobs.session.redis, [call_of(name) for name in batch])
            for name, reply in zip(batch, found, strict=True):
                if isinstance(reply, Exception):
                    raise reply
                replies[name] = reply
    return replies


def _outcome(job_id: str, reply: calls.Forgotten) -> bool | JobError:
    if reply.state is None:
        return reply.deleted
    return NotReady(job_id, reply.state, "it has not ended and cannot be forgotten; cancel it first")
