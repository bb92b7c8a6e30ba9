"""Counts the output tokens of a batch's rows under way, as their jobs' token logs have them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from millstream.gateway.queues.queue_clients import QueueClient

MOST_JOBS = 256  # read in one look: those that were submitted first, which workers take first


@dataclass(slots=True, eq=False)
class _LiveJob:
    client: QueueClient
    cursor: str | None = None  # of the last entry that was read
    tokens: int = 0


class LiveTokens:
    """Mutable; one per run. `total` is what was seen in the last looks."""

    def __init__(self) -> None:
        self._jobs: dict[str, _LiveJob] = {}  # by job id, in the order of their submission

    @property
    def total(self) -> int:
        return sum(job.tokens for job in self._jobs.values())

    def begin(self, client: QueueClient, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            self._jobs.setdefault(job_id, _LiveJob(client))

    def end(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    async def look(self) -> None:
        """Reads what is new in the logs. Raises Unavailable, AccessDenied, ProtocolError."""
        by_client: defaultdict[QueueClient, dict[str, _LiveJob]] = defaultdict(dict)
        for job_id, job in islice(self._jobs.items(), MOST_JOBS):
            by_client[job.client][job_id] = job
        for client, jobs in by_client.items():
            found = await client.new_tokens({job_id: job.cursor for job_id, job in jobs.items()})
            for job_id, (cursor, tokens) in found.items():
                jobs[job_id].cursor = cursor
                jobs[job_id].tokens += tokens
