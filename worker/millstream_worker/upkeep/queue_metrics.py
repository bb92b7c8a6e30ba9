"""Measures the whole queue: waiting and running jobs, the age of the oldest one, living workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.wire.keys import LANES, Lane, ShardKeys
from millstream.wire.state.heartbeat import models_of, read_all_workers
from millstream.wire.state.lane_head import waiting_since_ms
from millstream.wire.state.queue_counts import count_at, read_lanes
from millstream.wire.state.queue_series import QueueSnapshot
from millstream.wire.timing import ServerClock
from millstream_worker.observe.metrics import Metrics


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
