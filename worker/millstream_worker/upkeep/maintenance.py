"""Transitions of jobs that no worker holds: due retries, passed deadlines; and consumers of dead workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.wire import calls
from millstream.wire.keys import GROUP, LANES, RELEASED, ShardKeys
from millstream_worker.upkeep.periodic_tasks import on_all


class Maintenance:
    """`limit`: jobs in one call, as a script holds up the server; `most_calls`: in a row, as the other tasks,
    the heartbeat among them, have their turn, too.
    """

    def __init__(
        self,
        redis: Any,
        shards: Sequence[ShardKeys],
        *,
        result_ttl_ms: int,
        limit: int = 200,
        most_calls: int = 50,
    ) -> None:
        self._redis = redis
        self._shards = shards
        self._result_ttl_ms = result_ttl_ms
        self._limit = limit
        self._most_calls = most_calls

    async def promote(self) -> None:
        """Move retries that are due into their lanes."""
        await on_all(self._shards, lambda shard: self._exhaust(calls.promote(shard, limit=self._limit)))

    async def expire(self) -> None:
        """End queued jobs whose deadline has passed."""
        ttl_ms = self._result_ttl_ms
        await on_all(
            self._shards, lambda shard: self._exhaust(calls.expire(shard, limit=self._limit, ttl_ms=ttl_ms))
        )

    async def drop_consumers(self) -> None:
        """Delete consumers of dead workers: they hold nothing, and their heartbeat has expired."""
        await on_all(self._shards, self._drop_consumers_of)

    async def _exhaust(self, call: calls.ScriptCall[tuple[str, ...]]) -> None:
        """Repeat while a call reaches its limit; the rest waits for the next time."""
        for _ in range(self._most_calls):
            if len(await calls.run(self._redis, call)) < self._limit:
                return

    async def _drop_consumers_of(self, shard: ShardKeys) -> None:
        for lane in LANES:
            for row in await self._redis.xinfo_consumers(shard.lane(lane), GROUP):
                name = row["name"].decode(errors="replace")
                if name == RELEASED or row["pending"]:
                    continue
                if await self._redis.exists(shard.worker(name), shard.loading(name)):
                    continue
                await calls.run(self._redis, calls.drop_consumer(shard, lane=lane, consumer=name))
