"""Waits for the end of many jobs at once: one subscription connection, records read in batches.

A job's record is read when its subscription is acknowledged (it may have ended before), when its end is
published, and, because either may be lost, periodically with all that are left.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from millstream.client.session.ended_job import EndedJob
from millstream.client.session.job_reader import READ_JOBS, QueueJobs
from millstream.client.session.options import check_wait
from millstream.errors import JobError, NotFound
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.messages.script_replies import JobRecord
from millstream.wire.timing import within

POLL_S = (1.0, 15.0)
POLLS_PER_S = 2000  # at most, over all jobs
READ_BYTES = 16 * 1024**2  # of results in one round trip, or one result
FEW_JOBS = 4  # read without checking their sizes

Ended = tuple[str, EndedJob | JobError]


class Ends:
    """A sink of many channels: collects the jobs whose records should be read."""

    def __init__(self, jobs_of: dict[str, str]) -> None:
        self._jobs_of = jobs_of  # channel -> job id
        self._due: dict[str, None] = {}  # job ids, in the order in which they came
        self._arrived = asyncio.Event()

    def deliver(self, channel: str, payload: bytes) -> None:
        if payload.split(b" ", 2)[1:2] == [b"e"]:
            self.subscribed(channel)

    def subscribed(self, channel: str) -> None:
        self._due[self._jobs_of[channel]] = None
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[str]:
        """Return the jobs to read; none if nothing came in time."""
        if not await within(self._arrived, timeout_s):
            return []
        self._arrived.clear()
        due, self._due = self._due, {}
        return list(due)


async def as_completed(
    jobs: QueueJobs, names: Iterable[str], timeout_s: float | None, poll_s: tuple[float, float] = POLL_S
) -> AsyncGenerator[tuple[str, Result | JobError], None]:
    """Each name (an id, full or own) with its job's outcome, as they end; NotReady for those that have not
    ended after `timeout_s`. `poll_s`: the first and the longest pause between two reads of all jobs that are
    left.
    """
    async with aclosing(ended(jobs, names, timeout_s, poll_s)) as ends:
        async for name, end in ends:
            yield name, end.read() if isinstance(end, EndedJob) else end


async def ended(
    jobs: QueueJobs, names: Iterable[str], timeout_s: float | None, poll_s: tuple[float, float] = POLL_S
) -> AsyncGenerator[Ended, None]:
    """The same, with the jobs as they are stored."""
    check_wait("timeout_s", timeout_s)
    polls = Polls(None if timeout_s is None else time.monotonic() + timeout_s, poll_s)
    full_ids = await jobs.session.outlast(partial(jobs.full_ids, list(names)), polls.give_up_s)
    named: defaultdict[str, list[str]] = defaultdict(list)  # job id -> names that the caller gave
    for name, job_id in full_ids.items():
        if job_id is None:
            yield name, NotFound(name)
        else:
            named[job_id].append(name)
    async with aclosing(_ended(jobs, named, polls)) as ends:
        async for job_id, end in ends:
            for name in named[job_id]:
                yield name, end


async def _ended(jobs: QueueJobs, job_ids: Iterable[str], polls: Polls) -> AsyncGenerator[Ended, None]:
    left = dict.fromkeys(job_ids, State.QUEUED)
    keys = await jobs.keys_of(left)
    channels = {job_id: own.events(job_id) for job_id, own in keys.items()}
    dispatcher = jobs.session.dispatcher((await jobs.info()).pubsub)
    ends = Ends({channel: job_id for job_id, channel in channels.items()})
    with dispatcher.subscription(channels.values(), ends):
        while left and not polls.over:
            due = await ends.take(polls.pause_s(len(left)))
            if not due or not polls.pause_s(len(left)):  # a read of all is due even if messages keep coming
                polls.next()
                due = list(left)
                if polls.waited_s >= jobs.session.looks.after_s:
                    await jobs.look(due)
            async for job_id, record in _records(jobs, [one for one in due if one in left], polls.give_up_s):
                if record is not None and not record.state.terminal:
                    left[job_id] = record.state
                    continue
                del left[job_id]
                dispatcher.drop(channels[job_id], ends)
                yield job_id, await _end(jobs, job_id, record, polls.give_up_s)
    for job_id, state in left.items():
        yield job_id, await jobs.not_ready(job_id, state)


class Polls:
    """Schedules the periodic reads of all jobs that are left, and the end of the wait."""

    def __init__(self, give_up_s: float | None, poll_s: tuple[float, float]) -> None:
        self.give_up_s = float("inf") if give_up_s is None else give_up_s
        self._every_s, self._longest_s = poll_s
        self._last_s = time.monotonic()
        self._began_s = self._last_s
        self.over = False

    @property
    def waited_s(self) -> float:
        """Seconds waited until the last read."""
        return self._last_s - self._began_s

    def pause_s(self, left: int) -> float:
        due_s = self._last_s + max(self._every_s, left / POLLS_PER_S)
        return max(0.0, min(due_s, self.give_up_s) - time.monotonic())

    def next(self) -> None:
        """Begin one read of all; the last one if the time is over."""
        self._last_s = time.monotonic()
        self._every_s = min(2 * self._every_s, self._longest_s)
        self.over = self._last_s >= self.give_up_s


async def _records(
    jobs: QueueJobs, job_ids: Sequence[str], give_up_s: float
) -> AsyncGenerator[tuple[str, JobRecord | None], None]:
    for start in range(0, len(job_ids), READ_JOBS):
        for batch in await _batches(jobs, job_ids[start : start + READ_JOBS], give_up_s):
            records = await jobs.session.outlast(partial(jobs.read, batch), give_up_s)
            for pair in zip(batch, records, strict=True):
                yield pair


async def _batches(jobs: QueueJobs, job_ids: Sequence[str], give_up_s: float) -> list[list[str]]:
    """Batches whose results fit into the memory together: a single one may have 64 MiB."""
    if len(job_ids) <= FEW_JOBS:
        return [list(job_ids)]
    sizes = await jobs.session.outlast(partial(jobs.result_sizes, job_ids), give_up_s)
    batches: list[list[str]] = [[]]
    held_bytes = 0
    for job_id, size in zip(job_ids, sizes, strict=True):
        if batches[-1] and held_bytes + size > READ_BYTES:
            batches.append([])
            held_bytes = 0
        batches[-1].append(job_id)
        held_bytes += size
    return batches


async def _end(
    jobs: QueueJobs, job_id: str, record: JobRecord | None, give_up_s: float
) -> EndedJob | JobError:
    if record is None:
        return NotFound(job_id)
    return await jobs.session.outlast(partial(jobs.ended, record), give_up_s)
