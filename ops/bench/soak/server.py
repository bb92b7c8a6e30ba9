"""The soak's look into the server: how much it holds, and what is left when all has ended."""

from __future__ import annotations

from typing import Any

from ops.bench.soak.load import QUEUE
from ops.bench.soak.series import MIB

from millstream.wire.connection import Endpoint
from millstream.wire.keys import GROUP, LANES, QueueKeys


class Inspector:
    """Of the soak's queue, which has one shard."""

    def __init__(self, url: str) -> None:
        self._redis: Any = Endpoint.of(url).commands("soak-inspector", timeout_s=30.0, retries=3)
        self._queue = QueueKeys(QUEUE)
        self._shard = self._queue.shard(0)

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def server(self) -> dict[str, float]:
        info: dict[str, Any] = await self._redis.info()
        shard = self._shard
        backlog = [await self._redis.xlen(lane) for lane in shard.lanes]
        backlog += [await self._redis.zcard(key) for key in (shard.delayed, *map(shard.parked, LANES))]
        return {
            "server used memory": info["used_memory"] / MIB,
            "server rss": info["used_memory_rss"] / MIB,
            "count keys": float(await self._redis.dbsize()),
            "count connections": float(info["connected_clients"]),
            "count channels": float(len(await self._redis.pubsub_channels())),
            "count jobs not ended": float(sum(backlog)),
        }

    async def left(self) -> list[str]:
        """What should not be there once every job has ended and every worker has gone."""
        shard = self._shard
        counts = {
            "held bytes": int(await self._redis.get(shard.held_bytes) or 0),
            "delayed": await self._redis.zcard(shard.delayed),
            "deadlines": await self._redis.zcard(shard.deadlines),
            "channels": len(await self._redis.pubsub_channels()),
        }
        for lane in shard.lanes:
            counts[f"entries of {lane}"] = await self._stale(lane)
            counts[f"pending of {lane}"] = (await self._redis.xpending(lane, GROUP))["pending"]
        lasting = [key async for key in self._redis.scan_iter(count=1000) if await self._lasts(key)]
        counts |= {f"key {key.decode()} without a time": 1 for key in lasting}
        return [f"left: {name}: {count}" for name, count in counts.items() if count]

    async def passing(self) -> int:
        """Keys that go by themselves."""
        keys = [key async for key in self._redis.scan_iter(count=1000)]
        return sum(key.decode() not in self._lasting for key in keys)

    async def _stale(self, lane: str) -> int:
        """Entries but those that were cancelled while nobody had read them: the next read drops them."""
        rows = await self._redis.xrange(lane)
        states = [
            await self._redis.hget(self._shard.job(fields[b"id"].decode()), "state") for _, fields in rows
        ]
        return sum(state in (b"queued", b"running") for state in states)

    async def _lasts(self, key: bytes) -> bool:
        return await self._redis.ttl(key) == -1 and key.decode() not in self._lasting

    @property
    def _lasting(self) -> set[str]:
        shard = self._shard
        return {self._queue.meta, *shard.kept_keys}
