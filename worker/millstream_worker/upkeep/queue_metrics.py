"""Measures the whole queue: waiting and running jobs, the age of the oldest one, living workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.wire.keys import LANES, Lane, ShardKeys
from millstream.wire.messages.record import number
from millstream.wire.server_errors import is_damage
from millstream.wire.state.heartbeat import models_of, read_all_workers
from millstream.wire.state.queue_counts import count_at, first_unread, read_lanes
from millstream.wire.state.queue_series import QueueSnapshot
from millstream.wire.timing import ServerClock
from millstream_worker.observe.metrics import Metrics

_FRONT = 64  # parked jobs to look at for the oldest: every tenant's first is near the front


class QueueFigures:
    def __init__(self, redis: Any, shards: Sequence[ShardKeys], clock: ServerClock, metrics: Metrics) -> None:
        self._redis = redis
        self._shards = shards
        self._clock = clock
        self._metrics = metrics
        self._oldest: dict[ShardKeys, dict[Lane, int]] = {}

    def oldest_ms(self, shard: ShardKeys) -> Mapping[Lane, int]:
        """Submission time of the oldest waiting job of each lane (Unix milliseconds); 0 if none waits. Empty
        before the first measurement.
        """
        return self._oldest.get(shard, {})

    async def measure(self) -> None:
        """Reads everything, then shows it; shows that it cannot be read, if so."""
        try:
            snapshot = await self._read()
        except Exception:
            self._metrics.show_queue(None)
            raise
        self._metrics.show_queue(snapshot)

    async def _read(self) -> QueueSnapshot:
        counts = await read_lanes(self._redis, *self._shards)
        for shard in self._shards:
            self._oldest[shard] = {
                lane: await waiting_since_ms(self._redis, shard, lane) or 0 for lane in LANES
            }
        kept = [count_at(key, await self._redis.get(key)) for _, key in (one.cache for one in self._shards)]
        workers, loading = await read_all_workers(self._redis, *self._shards)
        now_ms = self._clock.now_ms()
        self._metrics.cache_bytes.set(sum(filter(None, kept)))
        return QueueSnapshot(
            lanes=counts,
            oldest_s={lane: self._oldest_s(lane, now_ms) for lane in LANES},
            workers=(*workers, *loading),
            models=len(models_of(workers)),
        )

    def _oldest_s(self, lane: Lane, now_ms: int) -> float:
        since = [self._oldest[shard][lane] for shard in self._shards]
        return max(0, now_ms - min(filter(None, since), default=now_ms)) / 1000


async def waiting_since_ms(redis: Any, shard: ShardKeys, lane: str) -> int | None:
    """Submission time of the oldest job that no worker has read; None without one. By the job's own time: the
    entry of a parked job is younger. Raises what `first_unread` does.
    """
    unread = await first_unread(redis, shard.lane(lane))
    places = await redis.zrange(shard.parked(lane), 0, _FRONT - 1)
    ids = [place.partition(b" ")[2] for place in places]
    if unread is not None:
        ids.append(unread[1].get(b"id", b""))
    async with redis.pipeline(transaction=False) as pipeline:
        for job_id in ids:
            pipeline.hmget(shard.job(job_id.decode(errors="replace")), "submitted_ms")
        rows = await pipeline.execute(raise_on_error=False) if ids else []
    if trouble := next((row for row in rows if isinstance(row, Exception) and not is_damage(row)), None):
        raise trouble
    times = [ms for row in rows if not isinstance(row, Exception) and (ms := _time(row[0])) is not None]
    if unread is not None and not times:  # a foreign entry: it names no job, or one whose hash is damaged
        times.append(int(unread[0].partition(b"-")[0]))
    return min(times, default=None)


def _time(stored: bytes | None) -> int | None:
    """Returns the time, or None where the hash is damaged: nobody can read when its job came."""
    try:
        return number(stored)
    except ValueError:
        return None
