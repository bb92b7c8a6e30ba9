"""Metrics of the whole queue: waiting jobs, the age of the oldest one, living workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.wire.keys import LANES, Lane, ShardKeys
from millstream.wire.messages.record import number
from millstream.wire.state.heartbeat import models_of, read_workers
from millstream.wire.state.lane_head import waiting_since_ms
from millstream.wire.state.queue_counts import read_lanes
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
        """Read everything, then set the metrics."""
        counts = await read_lanes(self._redis, *self._shards)
        for shard in self._shards:
            self._oldest[shard] = {
                lane: await waiting_since_ms(self._redis, shard, lane) or 0 for lane in LANES
            }
        kept = [await self._redis.get(shard.cache[1]) for shard in self._shards]
        workers = await read_workers(self._redis, *self._shards)
        now_ms = self._clock.now_ms()
        for lane, count in counts.items():
            since = [self._oldest[shard][lane] for shard in self._shards]
            oldest_ms = now_ms - min(filter(None, since), default=now_ms)
            self._metrics.waits(lane, count.waiting or 0, max(0, oldest_ms) / 1000)
        self._metrics.cache_bytes.set(sum(number(count) or 0 for count in kept))
        self._metrics.workers.set(len(workers))
        self._metrics.models.set(len(models_of(workers)))
