"""Decides whose turn it is among the jobs that wait for something: `interactive` before `batch`, then the
tenant whose last turn is the longest ago.
"""

from __future__ import annotations

from collections.abc import Iterable

from millstream.wire.keys import LANES
from millstream_worker.jobs.job import Job


class TenantTurns:
    def __init__(self) -> None:
        self._turns: dict[str, int] = {}  # per tenant with jobs here: the higher, the later its last turn
        self._turn = 0

    def meet(self, jobs: Iterable[Job]) -> None:
        """These jobs wait, or have a turn. New tenants do not overtake others."""
        tenants = {job.request.tenant for job in jobs}
        known = {tenant: turn for tenant, turn in self._turns.items() if tenant in tenants}
        first = min(known.values(), default=self._turn)
        self._turns = dict.fromkeys(tenants, first) | known

    def place(self, job: Job) -> tuple[int, int]:
        """The least is next; the job was met."""
        return LANES.index(job.entry.lane), self._turns[job.request.tenant]

    def take(self, job: Job) -> None:
        self._turn += 1
        self._turns[job.request.tenant] = self._turn
