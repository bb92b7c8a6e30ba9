"""Decides when to ask workers to check a silent job: its entry may have been destroyed, which only a worker
can detect. Knows no server.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

AFTER_S = 15.0  # of silence; by then polls have backed off
AGAIN_S = 300.0
MOST = 1000  # jobs in AGAIN_S, of one client: nearly all silent jobs simply wait


class Looks:
    """One client's checks: each job at most once in AGAIN_S, and at most MOST jobs in that time, so that
    thousands of waiting jobs do not load the workers. Times are seconds of the monotonic clock.
    """

    def __init__(self, after_s: float = AFTER_S) -> None:
        self.after_s = after_s
        self._asked: dict[str, float] = {}  # job id -> time, the first asked first

    def choose(self, job_ids: Sequence[str], now_s: float) -> list[str]:
        """The jobs to ask about now: random ones, so that all have their turn in time."""
        self._forget(now_s)
        new = [job_id for job_id in job_ids if job_id not in self._asked]
        chosen = random.sample(new, min(len(new), MOST - len(self._asked)))
        self._asked |= dict.fromkeys(chosen, now_s)
        return chosen

    def _forget(self, now_s: float) -> None:
        while self._asked and now_s - next(iter(self._asked.values())) >= AGAIN_S:
            del self._asked[next(iter(self._asked))]
