"""Looks for kept results of jobs that have just been prepared. One that is found is the job's own result; the
other jobs go to the engine.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from redis.exceptions import RedisError

from millstream.errors import ProtocolError
from millstream.wire.keys import ShardKeys
from millstream.wire.messages import codec
from millstream.wire.messages.messages import Result, State
from millstream.wire.timing import ServerClock, within
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job, Phase
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch

_IDLE_S = 1.0


class Lookup:
    """All jobs that have come since the last one are looked for in one round trip a shard."""

    def __init__(
        self,
        consumer: Consumer,
        table: JobTable,
        queue: EngineQueue,
        clock: ServerClock,
        metrics: Metrics,
        watch: LoopWatch,
    ) -> None:
        self._redis = consumer.redis
        self._table = table
        self._queue = queue
        self._clock = clock
        self._metrics = metrics
        self._watch = watch
        self._jobs: list[Job] = []
        self._came = asyncio.Event()
        self._stopping = False

    def add(self, job: Job) -> None:
        """Look for the result of a job that is `looking_up`."""
        self._jobs.append(job)
        self._came.set()

    def stop(self) -> None:
        self._stopping = True
        self._came.set()

    async def run(self) -> None:
        with self._watch:
            while not self._stopping:
                self._watch.turn()
                await within(self._came, _IDLE_S)
                self._came.clear()
                jobs, self._jobs = self._jobs, []
                by_shard: defaultdict[ShardKeys, list[Job]] = defaultdict(list)
                for job in jobs:
                    by_shard[job.shard].append(job)
                for shard, its in by_shard.items():
                    await self._look(shard, its)

    async def _look(self, shard: ShardKeys, jobs: Sequence[Job]) -> None:
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job in jobs:
                    pipeline.hget(shard.cached(job.cache_key.hex()), "result")
                found = await pipeline.execute()
        except (RedisError, OSError):
            found = [None] * len(jobs)  # they are computed
        for job, data in zip(jobs, found, strict=True):
            job.looking_up = False
            if job.phase is not Phase.ENDED and self._table.holds(job):
                self._settle(job, data)
        self._queue.hand_over()

    def _settle(self, job: Job, data: bytes | None) -> None:
        result = None if data is None else _read(data)
        if result is None or not job.adopt(result.choices):
            self._metrics.cache_misses.inc()
            return
        self._metrics.cache_hits.inc()
        job.set_last_token(self._clock.now_ms())
        self._table.conclude(job, State.COMPLETED)


def _read(data: bytes) -> Result | None:
    try:
        return codec.decode(Result, data, codec.MAX_RESULT_BYTES)
    except ProtocolError:
        return None
