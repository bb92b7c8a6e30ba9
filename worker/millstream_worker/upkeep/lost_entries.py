"""Jobs whose entry was destroyed. Readers of a silent job name it on the control channel; this checks whether
any worker will ever take it, and ends it if not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog
from redis.exceptions import ResponseError

from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.keys import ShardKeys, is_job_id
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import partial_result, read_job, read_log
from millstream.wire.messages.script_replies import JobRecord, LogEntry
from millstream_worker.jobs.job_records import ENTRY_LOST

_log = structlog.get_logger(__name__)
_MOST_ASKED = 1000  # anybody may publish; readers ask again
_AT_ONCE = 100  # jobs between two turns of the other tasks


class LostEntries:
    """`asked` is called by the control channel; `look` is a periodic task."""

    def __init__(
        self, redis: Any, shards: Sequence[ShardKeys], now_ms: Callable[[], int], *, result_ttl_ms: int
    ) -> None:
        self._redis = redis
        self._shards = {shard.control: shard for shard in shards}
        self._now_ms = now_ms  # of the server
        self._result_ttl_ms = result_ttl_ms
        self._asked: dict[tuple[str, str], None] = {}  # (control channel, job id), the first asked first

    def asked(self, channel: str, job_id: str) -> None:
        if is_job_id(job_id) and len(self._asked) < _MOST_ASKED:
            self._asked[channel, job_id] = None

    async def look(self) -> None:
        """Check the jobs that were asked about, and fail those that no worker will ever take."""
        for channel, job_id in list(self._asked)[:_AT_ONCE]:
            try:
                await self._look_at(self._shards[channel], job_id)
            except (ResponseError, ProtocolError) as error:  # its keys are damaged: its state is unknown
                _log.warning("job cannot be checked", job_id=job_id, error=f"{error!s:.200}")
            self._asked.pop((channel, job_id), None)  # kept if the server did not answer

    async def _look_at(self, shard: ShardKeys, job_id: str) -> None:
        record = await read_job(self._redis, shard, job_id)
        if record is None or record.state.terminal:
            return
        look = partial(
            calls.look,
            shard,
            job_id=job_id,
            attempt=record.attempt,
            seq=record.last_seq,
            ttl_ms=self._result_ttl_ms,
        )
        if not await calls.run(self._redis, look()):  # nearly always false: no log is read for it
            return
        log, now_ms = await read_log(self._redis, shard, job_id), self._now_ms()
        result = await asyncio.to_thread(_result, record, log, now_ms)
        if await calls.run(self._redis, look(result=result, finished_ms=now_ms)):
            _log.warning("job ended: its entry was destroyed", job_id=job_id, error=ENTRY_LOST.code)


def _result(record: JobRecord, log: Sequence[LogEntry], now_ms: int) -> bytes:
    """The output of earlier attempts, as a failed result."""
    result = partial_result(record, log)
    timing = result.timing.model_copy(update={"finished_ms": now_ms})
    update = {"state": State.FAILED, "error": ENTRY_LOST, "timing": timing}
    return codec.encode(result.model_copy(update=update))
