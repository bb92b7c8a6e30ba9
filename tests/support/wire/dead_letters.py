"""Dead letters made by hand: as a worker buries a job, and as it discards an entry that is none."""

from __future__ import annotations

import contextlib

from redis.exceptions import ResponseError

from millstream.wire import calls
from millstream.wire.keys import GROUP, Lane
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import ErrorInfo, Result, State
from millstream.wire.messages.script_replies import EndOutcome
from support.workers.hand_worker import TTL_MS, HandJob, HandWorker

MAX_DEAD = 1000


async def bury(job: HandJob, reason: str = "poison") -> None:
    """The job ends as failed, and its letter is written."""
    error = ErrorInfo(code=reason, message="it killed its engine")
    call = calls.dead_letter(
        job.worker.keys,
        job.claim,
        lane=job.entry.lane,
        reason=reason,
        result=codec.encode(Result(state=State.FAILED, error=error)),
        ttl_ms=TTL_MS,
        max_dead=MAX_DEAD,
    )
    assert await calls.run(job.worker.redis, call) is EndOutcome.OK


async def discard_strange(worker: HandWorker, payload: bytes, lane: str = Lane.BATCH) -> None:
    """A stranger's entry comes into the lane, and the worker throws it out."""
    key = worker.keys.lane(lane)
    entry_id = await worker.redis.xadd(key, {"b": payload})
    with contextlib.suppress(ResponseError):  # it is there
        await worker.redis.xgroup_create(key, GROUP, "0")
    await worker.redis.xreadgroup(GROUP, worker.name, {key: ">"}, count=1)
    call = calls.discard(
        worker.keys,
        lane=lane,
        owner=worker.name,
        entry_id=entry_id.decode(),
        reason="not a job: no id",
        max_dead=MAX_DEAD,
    )
    assert await calls.run(worker.redis, call) is EndOutcome.OK
