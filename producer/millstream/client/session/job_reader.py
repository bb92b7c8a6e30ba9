"""One queue's jobs as a producer reads them: records, token logs, results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence

from millstream.client.session.ended_job import EndedJob, with_remedy
from millstream.client.session.session import NEVER, Session
from millstream.client.streaming.cursor import START, Cursor
from millstream.client.streaming.reader import PAGE_ENTRIES
from millstream.errors import (
    AccessDenied,
    NotFound,
    NotReady,
    ProtocolError,
    Unavailable,
)
from millstream.wire import calls
from millstream.wire.keys import LOOK, QueueKeys, ShardKeys, full_id, shard_of
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import (
    JOB_FIELDS,
    job_record,
    job_state,
    log_entry,
    read_job,
)
from millstream.wire.messages.script_replies import JobRecord, LogEntry
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.state.queue_info import ModelIdentity, QueueInfo, open_queue, read_queue

READ_JOBS = 256  # records in one round trip
LOOK_S = 5.0  # between two checks for workers of a shard


class QueueJobs:
    """Reads of one queue. The first reader of a job whose deadline has passed ends it."""

    def __init__(self, session: Session, queue: str) -> None:
        QueueKeys(queue)  # refuses a bad name before anything is sent
        self.session = session
        self.queue = queue
        self._info: QueueInfo | None = None
        # monotonic seconds of the check, and its finding
        self._served: dict[ShardKeys, tuple[float, bool]] = {}

    async def open(self) -> QueueInfo:
        """The queue's metadata, written on the queue's first use. Raises QueueMismatch."""
        return self._info or await self.reopen()

    async def reopen(self) -> QueueInfo:
        """The current metadata: workers of other versions may have come."""
        options = self.session.options
        with self.session.reach():
            self._info = await open_queue(
                self.session.redis,
                self.queue,
                shards=options.shards,
                pubsub=options.pubsub,
                known=self._info,
            )
        return self._info

    async def info(self) -> QueueInfo:
        """The metadata for readers, who create nothing."""
        if self._info is None:
            with self.session.reach():
                self._info = await read_queue(self.session.redis, self.queue)
        return self._info or QueueInfo()

    async def model(self) -> ModelIdentity:
        """The model that the metadata name now; creates nothing."""
        with self.session.reach():
            info = await read_queue(self.session.redis, self.queue)
        return (info or QueueInfo()).served

    async def full_ids(self, names: Iterable[str]) -> dict[str, str | None]:
        """The full ids of jobs, given by full or own ids; None: no job can have such an id."""
        shards = (await self.info()).shards
        return {name: full_id(name, shards) for name in names}

    async def full_id(self, name: str) -> str:
        """Raises NotFound for a text that no job can have as its id."""
        [job_id] = (await self.full_ids([name])).values()
        if job_id is None:
            raise NotFound(name)
        return job_id

    async def keys(self, job_id: str) -> ShardKeys:
        return (await self.keys_of([job_id]))[job_id]

    async def keys_of(self, job_ids: Iterable[str]) -> dict[str, ShardKeys]:
        shards = {job_id: shard_of(job_id) for job_id in job_ids}
        queue = (await self.info()).keys(self.queue)
        return {job_id: queue.shard(shard) for job_id, shard in shards.items()}

    async def read(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Their records, in few round trips; None for a job that does not exist."""
        records: list[JobRecord | None] = []
        for start in range(0, len(job_ids), READ_JOBS):
            records += await self._read_batch(job_ids[start : start + READ_JOBS])
        return records

    async def record(self, name: str) -> JobRecord:
        """The record of the job of this full or own id. Raises NotFound."""
        job_id = await self.full_id(name)
        [record] = await self.read([job_id])
        if record is None:
            raise NotFound(job_id)
        return record

    async def states(self, names: Sequence[str]) -> list[State | None]:
        """The jobs' states, by full or own ids; None for one that does not exist. One round trip."""
        ids = await self.full_ids(names)
        found = [job_id for job_id in ids.values() if job_id is not None]
        keys = await self.keys_of(found)
        with self.session.reach():
            async with self.session.redis.pipeline(transaction=False) as pipeline:
                for job_id in found:
                    pipeline.hget(keys[job_id].job(job_id), "state")
                rows = dict(zip(found, await pipeline.execute(), strict=True))
        read = {job_id: job_state(job_id, row) for job_id, row in rows.items() if row is not None}
        return [read.get(ids[name] or "") for name in names]

    async def result_sizes(self, job_ids: Sequence[str]) -> list[int]:
        """Bytes of their stored results, 0 without one, to bound the memory of reading them. One
        round trip.
        """
        keys = await self.keys_of(job_ids)
        with self.session.reach():
            async with self.session.redis.pipeline(transaction=False) as pipeline:
                for job_id in job_ids:
                    pipeline.hstrlen(keys[job_id].job(job_id), "result")
                return [int(size) for size in await pipeline.execute()]

    async def _read_batch(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        keys = await self.keys_of(job_ids)
        with self.session.reach():
            async with self.session.redis.pipeline(transaction=False) as pipeline:
                for job_id in job_ids:
                    pipeline.zscore(keys[job_id].deadlines, job_id)
                    pipeline.hmget(keys[job_id].job(job_id), JOB_FIELDS)
                replies = await pipeline.execute()
        records = [job_record(job_id, row) for job_id, row in zip(job_ids, replies[1::2], strict=True)]
        for i, (job_id, deadline) in enumerate(zip(job_ids, replies[::2], strict=True)):
            if deadline is not None and await self._expire(keys[job_id], job_id, deadline):
                records[i] = await self._read_one(keys[job_id], job_id)
        return records

    async def _read_one(self, keys: ShardKeys, job_id: str) -> JobRecord | None:
        with self.session.reach():
            return await read_job(self.session.redis, keys, job_id)

    async def _expire(self, keys: ShardKeys, job_id: str, deadline_ms: float) -> bool:
        if deadline_ms > await self.session.now_ms():
            return False
        call = calls.expire_one(keys, job_id=job_id, ttl_ms=self.session.options.result_ttl_ms)
        try:
            with self.session.reach():
                return await calls.run(self.session.redis, call)
        except AccessDenied:  # an observer reads and writes nothing: a worker ends the job
            return False

    async def look(self, job_ids: Sequence[str]) -> None:
        """Ask workers to check that these jobs, silent for long, still have their entries; as often as Looks
        allows.
        """
        chosen = self.session.looks.choose(job_ids, time.monotonic())
        if not chosen:
            return
        with contextlib.suppress(AccessDenied, Unavailable):  # the next poll reports it
            keys = await self.keys_of(chosen)
            with self.session.reach():
                async with self.session.redis.pipeline(transaction=False) as pipeline:
                    for job_id in chosen:
                        shard = keys[job_id]
                        pipeline.execute_command(shard.publish, shard.control, f"{LOOK} {job_id}")
                    await pipeline.execute()

    async def unreadable(self, job_id: str, error: ProtocolError) -> ProtocolError:
        """`error`, with a remedy if the job is of a version that this client does not read."""
        record = await self._read_one(await self.keys(job_id), job_id)
        return error if record is None else with_remedy(record, error)

    async def tail(self, job_id: str, place: Cursor) -> tuple[list[LogEntry], State | None]:
        """A page of the log from `place` on, inclusive, and the job's state just before."""
        keys = await self.keys(job_id)
        first = "-" if place == START else str(place)
        with self.session.reach():
            async with self.session.redis.pipeline(transaction=False) as pipeline:
                pipeline.hget(keys.job(job_id), "state")
                pipeline.xrange(keys.tokens(job_id), first, "+", PAGE_ENTRIES)
                pipeline.zscore(keys.deadlines, job_id)
                state, rows, deadline = await pipeline.execute()
        if deadline is not None and await self._expire(keys, job_id, deadline):
            return await self.tail(job_id, place)
        return [log_entry(*row) for row in rows], job_state(job_id, state) if state else None

    async def whole(self, job_id: str) -> tuple[list[LogEntry], JobRecord | None]:
        """The whole log, and the job's record just before."""
        keys = await self.keys(job_id)
        with self.session.reach():
            async with self.session.redis.pipeline(transaction=False) as pipeline:
                pipeline.hmget(keys.job(job_id), JOB_FIELDS)
                pipeline.xrange(keys.tokens(job_id))
                row, rows = await pipeline.execute()
        return [log_entry(*entry) for entry in rows], job_record(job_id, row)

    async def not_ready(self, job_id: str, state: State) -> NotReady:
        """The NotReady error, which also reports a missing worker (checked every few seconds)."""
        unserved = state is State.QUEUED and not await self._is_served(await self.keys(job_id))
        return NotReady(job_id, state, unserved=self.queue if unserved else None)

    async def _is_served(self, keys: ShardKeys) -> bool:
        looked_s, served = self._served.get(keys, (NEVER, True))
        if time.monotonic() - looked_s < LOOK_S:
            return served
        try:
            with self.session.reach():
                served = bool(await read_workers(self.session.redis, keys))
        except (AccessDenied, Unavailable):
            return True  # unknown
        self._served[keys] = time.monotonic(), served
        return served

    async def ended(self, record: JobRecord) -> EndedJob:
        """A terminal job as it is stored: without a result (cancelled, expired), with its log."""
        log = [] if record.result is not None else (await self.whole(record.job_id))[0]
        return EndedJob(record, tuple(log))
