"""What any worker does for all, now and then: due retries, passed deadlines, entries nobody keeps, consumers
that are gone, the worker's own heartbeat. One loop of named chores, each failing alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.heartbeat import Heartbeat, beat
from millstream.wire.keys import GROUP, LANES, RELEASED, ShardKeys
from millstream_worker.backlog import first_unread
from millstream_worker.clock import ServerClock
from millstream_worker.metrics import Metrics
from millstream_worker.upkeep.reclaim import Reclaimer

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0  # after a failure
_LIMIT = 200  # jobs in one call: a script holds up the server


@dataclass(slots=True)
class Chore:
    name: str
    every_s: float
    run: Callable[[], Awaitable[None]]
    due: float = field(default=0.0)  # monotonic seconds
    trouble: str = ""  # why it failed the last time; empty where it did not


class Upkeep:
    """`wake("scan")` brings a chore forward."""

    def __init__(self, chores: Sequence[Chore], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._chores = {chore.name: chore for chore in chores}
        self._monotonic = monotonic
        self._woken = asyncio.Event()
        self._stopping = False

    @property
    def trouble(self) -> str:
        """What a chore has failed of just now; empty where all have worked."""
        return next((chore.trouble for chore in self._chores.values() if chore.trouble), "")

    def wake(self, name: str) -> None:
        self._chores[name].due = 0.0
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Until `stop`. A flag, since a cancellation can be lost inside redis-py: on Python 3.11 its
        `timeout(0)` around the check of a pooled connection takes one that is just arriving for its own.
        """
        while not self._stopping:
            now = self._monotonic()
            for chore in self._chores.values():
                if chore.due <= now and not self._stopping:
                    # Many workers started by one command shall not all come at once.
                    chore.due = now + chore.every_s * random.uniform(0.8, 1.0)
                    await self._do(chore)
            await self._wait(min(chore.due for chore in self._chores.values()) - self._monotonic())
            self._woken.clear()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _do(self, chore: Chore) -> None:
        try:
            await chore.run()
        except (RedisError, OSError, ProtocolError) as error:
            if not chore.trouble:
                _log.warning("upkeep failed", chore=chore.name, error=str(error))
            chore.trouble = f"{chore.name}: {error}"
            chore.due = min(chore.due, self._monotonic() + _AGAIN_S)
        else:
            chore.trouble = ""


class Chores:
    """The chores themselves, for all shards of the queue."""

    def __init__(
        self,
        redis: Any,
        shards: Sequence[ShardKeys],
        reclaimer: Reclaimer,
        clock: ServerClock,
        metrics: Metrics,
        heartbeat: Callable[[], Heartbeat],
        *,
        result_ttl_ms: int,
    ) -> None:
        self._redis = redis
        self._shards = shards
        self._reclaimer = reclaimer
        self._clock = clock
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._result_ttl_ms = result_ttl_ms

    def schedule(self, renew_s: float) -> list[Chore]:
        def every(seconds: float, name: str, run: Callable[[], Awaitable[None]]) -> Chore:
            return Chore(name, min(seconds, renew_s), run)

        return [
            Chore("heartbeat", renew_s, lambda: self._beat(renew_s)),
            every(0.5, "promote", self._promote),
            every(1.0, "expire", self._expire),
            Chore("scan", renew_s, self._scan),
            every(5.0, "queue age", self._measure_age),
            Chore("clock", 60.0, lambda: self._clock.sync(self._redis)),
            Chore("consumers", 60.0, self._drop_consumers),
        ]

    async def _beat(self, renew_s: float) -> None:
        for shard in self._shards:
            await calls.run(self._redis, beat(shard, self._heartbeat(), ttl_ms=int(3000 * renew_s)))

    async def stop_beating(self) -> None:
        """Nobody shall think that the worker is alive, or wait for it."""
        for shard in self._shards:
            await self._redis.delete(shard.worker(self._heartbeat().name))

    async def _promote(self) -> None:
        for shard in self._shards:
            await self._exhaust(calls.promote(shard, limit=_LIMIT))

    async def _expire(self) -> None:
        for shard in self._shards:
            await self._exhaust(calls.expire(shard, limit=_LIMIT, ttl_ms=self._result_ttl_ms))

    async def _exhaust(self, call: calls.Call[tuple[str, ...]]) -> None:
        """Again, as long as there was more than one call may do."""
        done: tuple[str, ...] = await calls.run(self._redis, call)
        while len(done) == _LIMIT:
            done = await calls.run(self._redis, call)

    async def _scan(self) -> None:
        for shard in self._shards:
            await self._reclaimer.scan(shard)

    async def _measure_age(self) -> None:
        """Of the first entry that nobody has read; its id is the time of its submission."""
        for lane in LANES:
            ages = [await self._age(shard.lane(lane)) for shard in self._shards]
            self._metrics.oldest_queued.labels(lane).set(max(ages) / 1000)

    async def _age(self, lane_key: str) -> int:
        unread = await first_unread(self._redis, lane_key)
        if unread is None:
            return 0
        submitted_ms = int(unread.partition(b"-")[0])
        return max(0, self._clock.now_ms() - submitted_ms)

    async def _drop_consumers(self) -> None:
        """Of workers that are gone: they hold nothing, and their heartbeat is over."""
        for shard in self._shards:
            for lane in LANES:
                for row in await self._redis.xinfo_consumers(shard.lane(lane), GROUP):
                    name = row["name"].decode()
                    if name == RELEASED or row["pending"] or await self._redis.exists(shard.worker(name)):
                        continue
                    await calls.run(self._redis, calls.drop_consumer(shard, lane=lane, consumer=name))
