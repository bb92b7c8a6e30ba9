"""Looks for kept results of jobs that have just been prepared, and once more of those that wait for their
place in the batch. One that is found is the job's own result; the other jobs go to the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from millstream.wire.keys import ShardKeys
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Result, State
from millstream.wire.timing import ServerClock, within
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.equal_jobs.answers import MOST_KEPT_BYTES, adopt, takes_answer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch

_IDLE_S = 1.0


@dataclass(slots=True, eq=False)
class CachedResults:
    """All jobs that have come since the last one are looked for in one round trip a shard."""

    consumer: Consumer
    table: JobTable
    queue: EngineQueue
    clock: ServerClock
    net: Net
    watch: LoopWatch
    _jobs: list[Job] = field(default_factory=list)
    _came: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: bool = False

    def add(self, job: Job) -> None:
        """Look for the result of a job that is LOOKING_UP."""
        self._jobs.append(job)
        self._came.set()

    def stop(self) -> None:
        self._stopping = True
        self._came.set()

    async def run(self) -> None:
        with self.watch:
            while not self._stopping:
                self.watch.turn()
                await within(self._came, _IDLE_S)
                self._came.clear()
                jobs, self._jobs = self._jobs, []
                for shard in dict.fromkeys(job.shard for job in (*jobs, *self.queue.followers.not_begun())):
                    await self._look(shard, [job for job in jobs if job.shard == shard])

    async def _look(self, shard: ShardKeys, jobs: Sequence[Job]) -> None:
        asked = [job for job in jobs if not self._is_answered_here(job)]
        self.queue.hand_over()
        # Another worker may have kept an answer to these since they came.
        waiting = [job for job in self.queue.followers.not_begun() if job.shard == shard]
        if await self._ask(shard, asked, waiting):
            await self._ask(shard, waiting)

    def _is_answered_here(self, job: Job) -> bool:
        """By a job that has ended and is not written yet, or by one in the engine, which it will follow. Only
        the others have to be looked for: what has left the worker is written.
        """
        answer = self.table.answers.of(job)
        if not answer and not self.queue.has_leader_for(job):
            return False
        self._settle(job, answer)
        return True

    async def _ask(self, shard: ShardKeys, jobs: Sequence[Job], waiting: Sequence[Job] = ()) -> bool:
        """Settle these jobs. Whether there is an answer to one of those that wait."""
        try:
            async with self.consumer.redis.pipeline(transaction=False) as pipeline:
                for job in jobs:
                    pipeline.hget(shard.cached(job.input.cache_key.hex()), "result")
                if waiting:
                    pipeline.exists(*(shard.cached(job.input.cache_key.hex()) for job in waiting))
                found = await pipeline.execute()
        except (RedisError, OSError):
            found = [None] * (len(jobs) + 1)  # they are computed
        for job, data in zip(jobs, found[: len(jobs)], strict=True):
            self._settle(job, data)
        self.queue.hand_over()
        return bool(waiting and found[-1])

    def _settle(self, job: Job, data: bytes | None) -> None:
        """Its followers get the answer, too, before it sets them free."""
        is_new = job.phase is JobPhase.LOOKING_UP
        if is_new:
            job.move(JobPhase.READY)
        if not takes_answer(job) or not self.table.holds(job):
            return
        answered = self._answered((*self.queue.followers.of(job), job), data) if data else []
        if is_new and data is None:
            self.net.metrics.cache_misses.inc()
        for one in answered:
            self.net.metrics.cache_hits.inc()
            one.times.set("last_token_ms", self.clock.now_ms())
            self.table.conclude(one, State.COMPLETED)

    def _answered(self, jobs: Sequence[Job], data: bytes) -> list[Job]:
        """Those that have taken the kept result. None takes a damaged one: they are computed."""
        answered: list[Job] = []
        with self.net.around_kept(jobs[-1]):
            choices = codec.decode(Result, data, 2 * MOST_KEPT_BYTES).choices
            for job in jobs:
                adopt(job, choices)
                answered.append(job)
        return answered
