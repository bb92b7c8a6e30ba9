"""Charges an engine's death to the jobs that it had. From `max_died` deaths on a job is a suspect, which runs
isolated. Only a job with which `max_died_alone` engines died in isolation becomes a dead letter, and only
engines count that had computed something before.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_records import AttemptLimits
from millstream_worker.jobs.table import JobTable


class Blame:
    def __init__(self, table: JobTable, queue: EngineQueue, limits: AttemptLimits) -> None:
        self._table = table
        self._queue = queue
        self._limits = limits

    def charge(self, jobs: Sequence[Job], how: str) -> None:
        """`how`: the engine's exit, for the error message."""
        for job in jobs:
            if self._table.holds(job) and not job.phase.has_ended:
                self._charge(job, how)

    def _charge(self, job: Job, how: str) -> None:
        attempt = job.attempt
        attempt.deaths += 1
        if self._queue.isolated is job and self._queue.engine_proved:
            attempt.deaths_alone += 1
        if attempt.losses >= self._limits.max_died:
            self._table.suspect(job)
        if attempt.losses_alone >= self._limits.max_died_alone:
            message = (
                f"engines or workers died {attempt.losses} times computing this job, {attempt.losses_alone} "
                f"times alone with it, the last time by {how}"
            )
            error = ErrorInfo(code="engine_died", message=message)
            self._table.conclude(job, State.FAILED, error, letter="engine_died")
