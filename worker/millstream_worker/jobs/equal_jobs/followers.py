"""Keeps jobs that receive the tokens of an equal job, their leader, instead of being computed themselves."""

from __future__ import annotations

from itertools import islice

from millstream.wire.keys import LANES
from millstream_worker.jobs.equal_jobs.answers import takes_answer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase

MOST_FOLLOWERS = 1024  # of all leaders: each is held, and its lease is renewed
_MOST_LOOKED_FOR = 32  # leaders that wait, the longest first: their keys go into one command


class Followers:
    """Leaders are in the engine; their followers are not. Equal: of one `cache_key`."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Job] = {}
        self._of: dict[Job, dict[Job, None]] = {}  # by leader, which has at least one
        self._leader_of: dict[Job, Job] = {}

    @property
    def leaders(self) -> list[Job]:
        """Returns those that have followers."""
        return list(self._of)

    def not_begun(self) -> list[Job]:
        """Returns leaders that wait for their place in the batch, and may still take another worker's
        answer."""
        return list(islice((job for job in self._leaders.values() if takes_answer(job)), _MOST_LOOKED_FOR))

    def of(self, leader: Job) -> list[Job]:
        return list(self._of.get(leader, ()))

    def leader_for(self, job: Job) -> Job | None:
        """Returns the job whose tokens this one may take: its own are the beginning of those."""
        leader = self._leaders.get(job.input.cache_key)
        if leader is None or job.no_cache or len(self._leader_of) >= MOST_FOLLOWERS:
            return None
        return leader if _begins_as(job, leader) else None

    def lead(self, job: Job) -> None:
        """The job goes to the engine, and leads later equal ones unless another one does."""
        if job.outputs.cached:  # it followed before
            job.outputs.cached = False
            if job.outputs.cached_tokens is not None:
                job.outputs.cached_tokens = 0
        if job.input.cache_key:
            self._leaders.setdefault(job.input.cache_key, job)

    def follow(self, job: Job, leader: Job) -> None:
        self._of.setdefault(leader, {})[job] = None
        self._leader_of[job] = leader
        job.outputs.cached = True
        job.move(JobPhase.FOLLOWING)

    def leave(self, job: Job) -> list[Job]:
        """The job leads and follows no more. Returns its followers, which have no leader now."""
        leader = self._leader_of.pop(job, None)
        if leader is not None:
            del self._of[leader][job]
            if not self._of[leader]:
                del self._of[leader]
        if self._leaders.get(job.input.cache_key) is job:
            del self._leaders[job.input.cache_key]
        left = list(self._of.pop(job, ()))
        for one in left:
            del self._leader_of[one]
        return left

    def clear(self) -> list[Job]:
        """The engine is gone. Returns those that followed."""
        left = list(self._leader_of)
        for group in (self._leaders, self._of, self._leader_of):
            group.clear()
        return left


def outranks(job: Job, leader: Job) -> bool:
    """True if the leader would keep the job waiting for its lane."""
    waits = leader.phase.is_before_batch and not leader.outputs.tokens
    return waits and LANES.index(job.lane) < LANES.index(leader.lane)


def _begins_as(job: Job, leader: Job) -> bool:
    pairs = zip(job.rows, leader.rows, strict=True)
    return all(
        own.reason is None and other.reason is None and own.ids == other.ids[: len(own.ids)]
        for own, other in pairs
    )
