"""Holds the jobs of this worker, and the entries that are becoming jobs. It is the one place where a job is
added, concluded or dropped, so that it leaves the engine queue at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from millstream.wire.keys import ShardKeys
from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.jobs.engine_queue import EngineQueue, Signal
from millstream_worker.jobs.equal_jobs.answers import EndedAnswers
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase

Entry = tuple[ShardKeys, str, str]  # shard, lane, entry id
_MOST_PUT_OFF = 256  # long jobs that wait beside the look-ahead; of their messages few are kept
_MOST_COMPILING = 256  # rows that wait for their grammars beside it


class JobTable:
    """`to_write` is set when a write must not wait for the next flush; the writer clears it. `changed`: a job
    or the engine has changed state, so there may be room for more.
    """

    def __init__(self, queue: EngineQueue) -> None:
        self.to_write = asyncio.Event()
        self.changed = Signal()
        self._queue = queue
        self._jobs: dict[str, Job] = {}
        self._coming: dict[Entry, str] = {}  # job ids by entry: delivered, not jobs yet
        self._cancelled: set[str] = set()  # ids of those: they end as soon as they are jobs
        self.answers = EndedAnswers()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def holds(self, job: Job) -> bool:
        return self._jobs.get(job.id) is job

    def entries(self) -> dict[Entry, str]:
        """Returns what this worker has a lease on, with job ids: held jobs, and entries that become jobs."""
        return self._coming | {
            (job.shard, job.entry.lane, job.entry.entry_id): job.id for job in self._jobs.values()
        }

    @property
    def waiting_rows(self) -> int:
        """Counts rows that are not in the engine's batch yet; an unread job counts as at least one. Long jobs
        that wait to be read do not count until they are many, unless they hold logged tokens; nor do rows
        that wait for their grammars, which are compiled one by one while the batch may be empty.
        """
        put_off = sum(
            job.input.put_off is not None and job.input.put_off.last_seq == 0 for job in self.to_read()
        )
        waits = [job for job in self._jobs.values() if job.phase.is_before_batch]
        waiting = sum(max(1, len(job.rows)) for job in waits)
        compiling = sum(len(job.rows) for job in waits if job.phase is JobPhase.COMPILING)
        return waiting - min(put_off, _MOST_PUT_OFF) - min(compiling, _MOST_COMPILING)

    @property
    def waiting_tokens(self) -> int:
        """Counts tokens of prompts and predictions of the jobs that are not in the engine's batch yet,
        without suspects: those wait for all others, so counting them could make a suspect wait for a job that
        is not read because of it.
        """
        waiting = (job for job in self._jobs.values() if job.phase.is_before_batch and not job.attempt.alone)
        return sum(len(job.input.prompt) + len(job.input.prediction) for job in waiting)

    @property
    def has_suspect(self) -> bool:
        return any(job.attempt.alone for job in self._jobs.values())

    def to_read(self) -> list[Job]:
        """Returns jobs put off for their length, in the order of arrival."""
        return [job for job in self._jobs.values() if job.phase is JobPhase.UNREAD and not job.attempt.alone]

    def put_off(self) -> list[Job]:
        """Returns the same, those whose reading was abandoned, and those whose images are not prepared."""
        return [
            *self.to_read(),
            *(job for job in self if job.phase.is_being_read and not job.attempt.alone),
            *(job for job in self.to_prepare() if not job.attempt.alone),
        ]

    def to_prepare(self) -> list[Job]:
        """Returns jobs whose images are, in the order of arrival."""
        return [job for job in self._jobs.values() if job.phase is JobPhase.PREPARING]

    def expect(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """These were delivered to this worker; making jobs of them may outlast a lease."""
        self._coming |= {(shard, entry.lane, entry.entry_id): entry.job_id for entry in entries}

    def expect_no_more(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        for entry in entries:
            self._coming.pop((shard, entry.lane, entry.entry_id), None)
            self._cancelled.discard(entry.job_id)

    def cancel(self, job_id: str) -> None:
        """Cancel a held job, or an entry that becomes one; unknown ids are ignored."""
        job = self._jobs.get(job_id)
        if job is not None:
            self.conclude(job, State.CANCELLED)
        elif job_id in self._coming.values():
            self._cancelled.add(job_id)

    def take(self, job: Job) -> None:
        """Hold a started job, and have it computed unless its end is already decided."""
        older = self._jobs.get(job.id)
        if older is not None:  # our lease on an earlier attempt was lost and we have not noticed yet
            self.drop(older)
        self._jobs[job.id] = job
        if job.id in self._cancelled:  # while it was made
            self._cancelled.discard(job.id)
            job.conclude(State.CANCELLED)
        self.to_write.set()
        if not job.phase.has_ended:
            self._queue.put(job)
            if job.phase in (JobPhase.UNREAD, JobPhase.PREPARING):
                self.changed.notify()

    def suspect(self, job: Job) -> None:
        """From now on it runs isolated, and its input does not count."""
        job.attempt.alone = True
        self.changed.notify()

    def conclude(
        self, job: Job, state: State, error: ErrorInfo | None = None, letter: str | None = None
    ) -> None:
        """Decide how a job ends; its rows are aborted, and its end is written next."""
        job.conclude(state, error, letter)
        self.answers.add(job)
        self._queue.withdraw(job)
        self.to_write.set()
        self.changed.notify()  # it takes no room any more

    def drop(self, job: Job) -> None:
        """Forget a job whose end is written, or that is not ours any more."""
        if self.holds(job):
            del self._jobs[job.id]
        self.answers.drop(job)
        self._queue.withdraw(job)
        self.changed.notify()
