"""Cancels the jobs of an interrupted run, which its journal lists; the input is not needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from millstream.batch.files.journal import Journal
from millstream.client.async_client import AsyncClient
from millstream.openai.prompt_list import own_ids
from millstream.wire.messages.script_replies import CancelOutcome

_WAITING = (CancelOutcome.CANCELLED, CancelOutcome.REQUESTED)


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
    """Cancel jobs, given as own ids with their queues; jobs of a list of prompts by their one name. Those
    that have ended are left for a later run to collect, if `wanted`; the lines of all others then get new
    jobs. May be repeated after Unavailable.
    """
    by_queue: defaultdict[str, list[str]] = defaultdict(list)
    for name, queue in jobs.items():
        by_queue[queue].append(name)
    counts = dict.fromkeys(CancelOutcome, 0)
    for queue, names in by_queue.items():
        jobs_of = {name: own_ids(name) for name in names}
        outcomes = await client.with_queue(queue).cancel_many(chain.from_iterable(jobs_of.values()))
        for outcome in outcomes.values():
            counts[outcome] += 1
        stopped = {name for name, its in jobs_of.items() if any(outcomes[one] in _WAITING for one in its)}
        journal.cancelled(
            [name for name in names if not wanted or name in stopped or name in journal.notes.left]
        )
    return Cancelled(
        counts[CancelOutcome.CANCELLED],
        counts[CancelOutcome.TERMINAL],
        counts[CancelOutcome.REQUESTED],
        counts[CancelOutcome.NOT_FOUND],
    )
