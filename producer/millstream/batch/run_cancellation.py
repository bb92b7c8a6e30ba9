"""Cancels the jobs of an interrupted run, which its journal lists; the input is not needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.batch.files.journal import Journal
from millstream.client.async_client import AsyncClient
from millstream.wire.messages.script_replies import CancelOutcome


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Counts of jobs."""

    cancelled: int = 0  # they waited, and will not run
    ended: int = 0  # before
    running: int = 0  # their workers were notified, and end them soon
    unknown: int = 0  # to this server: they never reached it, have expired, or are on another one


async def cancel_jobs(
    client: AsyncClient, journal: Journal, jobs: Mapping[str, str], *, wanted: bool = True
) -> Cancelled:
    """Cancel jobs, given as own ids with their queues. Those that have ended are left for a later run to
    collect, if `wanted`; the lines of all others then get new jobs. May be repeated after Unavailable.
    """
    by_queue: defaultdict[str, list[str]] = defaultdict(list)
    for own_id, queue in jobs.items():
        by_queue[queue].append(own_id)
    counts = dict.fromkeys(CancelOutcome, 0)
    for queue, own_ids in by_queue.items():
        outcomes = await client.with_queue(queue).cancel_many(own_ids)
        for outcome in outcomes.values():
            counts[outcome] += 1
        waiting = (CancelOutcome.CANCELLED, CancelOutcome.REQUESTED)
        journal.cancelled(
            [
                own_id
                for own_id, outcome in outcomes.items()
                if not wanted or outcome in waiting or own_id in journal.left
            ]
        )
    return Cancelled(
        counts[CancelOutcome.CANCELLED],
        counts[CancelOutcome.TERMINAL],
        counts[CancelOutcome.REQUESTED],
        counts[CancelOutcome.NOT_FOUND],
    )
