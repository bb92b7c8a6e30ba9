"""The worker's heartbeat: a key per shard that expires unless it is written again. Readers find it by the
worker's name among the consumers of the lanes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from millstream.wire import calls
from millstream.wire.keys import Lane, ShardKeys
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream_worker.upkeep.periodic_tasks import on_all
from millstream_worker.upkeep.queue_metrics import QueueFigures


@dataclass(slots=True, eq=False)
class Heartbeats:
    """`heartbeat` returns the next one; `figures` adds the age of each shard's oldest waiting job."""

    redis: Any
    shards: Sequence[ShardKeys]
    heartbeat: Callable[[], Heartbeat]
    figures: QueueFigures
    renew_s: float

    async def send(self) -> None:
        heartbeat = self.heartbeat()

        async def send(shard: ShardKeys) -> None:
            oldest = self.figures.oldest_ms(shard)
            one = replace(
                heartbeat,
                oldest_interactive_ms=oldest.get(Lane.INTERACTIVE, 0),
                oldest_batch_ms=oldest.get(Lane.BATCH, 0),
            )
            await self._register(shard, one.name)
            await calls.run(self.redis, beat(shard, one, ttl_ms=int(3000 * self.renew_s)))

        await on_all(self.shards, send)

    async def end(self) -> None:
        """Delete the heartbeat, so that nobody takes the worker for alive."""
        name = self.heartbeat().name
        await on_all(self.shards, lambda shard: self.redis.delete(shard.worker(name), shard.loading(name)))

    async def _register(self, shard: ShardKeys, name: str) -> None:
        """Each time, as upkeep of others may have taken it for dead. Redis before 7.2 registers only a worker
        that gets an entry.
        """
        with contextlib.suppress(ResponseError):
            await calls.run(self.redis, calls.join(shard, owner=name))
