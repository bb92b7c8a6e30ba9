"""Transitions of jobs that no worker holds: due retries, passed deadlines; and consumers of dead workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from millstream.wire import calls
from millstream.wire.keys import GROUP, LANES, RELEASED, ShardKeys
from millstream_worker.upkeep.periodic_tasks import on_all


@dataclass(slots=True, eq=False)
class Maintenance:
    """`limit`: jobs in one call, as a script holds up the server; `most_calls`: in a row, as the other tasks,
    the heartbeat among them, have their turn, too.
    """

    redis: Any
    shards: Sequence[ShardKeys]
    _: KW_ONLY
    result_ttl_ms: int
    limit: int = 200
    most_calls: int = 50

    async def promote(self) -> None:
        """Move retries that are due into their lanes."""
        await on_all(self.shards, lambda shard: self._exhaust(calls.promote(shard, limit=self.limit)))

    async def expire(self) -> None:
        """End queued jobs whose deadline has passed."""
        ttl_ms = self.result_ttl_ms
        await on_all(
            self.shards, lambda shard: self._exhaust(calls.expire(shard, limit=self.limit, ttl_ms=ttl_ms))
        )

    async def drop_consumers(self) -> None:
        """Delete consumers of dead workers: they hold nothing, and their heartbeat has expired."""
        await on_all(self.shards, self._drop_consumers_of)

    async def _exhaust(self, call: calls.ScriptCall[tuple[str, ...]]) -> None:
        """Repeat while a call reaches its limit; the rest waits for the next time."""
        for _ in range(self.most_calls):
            if len(await calls.run(self.redis, call)) < self.limit:
                return

    async def _drop_consumers_of(self, shard: ShardKeys) -> None:
        for lane in LANES:
            for row in await self.redis.xinfo_consumers(shard.lane(lane), GROUP):
                name = row["name"].decode(errors="replace")
                if name == RELEASED or row["pending"]:
                    continue
                if await self.redis.exists(shard.worker(name), shard.loading(name)):
                    continue
                await calls.run(self.redis, calls.drop_consumer(shard, lane=lane, consumer=name))
