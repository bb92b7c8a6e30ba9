"""What any worker does for all, now and then: due retries, passed deadlines, entries nobody keeps, consumers
that are gone, the worker's own heartbeat. One loop of named chores, each failing alone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError, QueueMismatch
from millstream.wire import calls
from millstream.wire.heartbeat import Heartbeat, beat, read_workers
from millstream.wire.keys import GROUP, LANES, RELEASED, Lane, ShardKeys
from millstream.wire.numbers import read_lanes
from millstream.wire.timing import ServerClock, within
from millstream_worker.backlog import waiting_since_ms
from millstream_worker.metrics import Metrics
from millstream_worker.refusals import is_outage
from millstream_worker.trouble import Trouble, server_trouble
from millstream_worker.upkeep.lost import LostEntries
from millstream_worker.upkeep.reclaim import Reclaimer
from millstream_worker.vitals import Vital

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0  # after a failure
_LIMIT = 200  # jobs in one call: a script holds up the server
_MOST_CALLS = 50  # in a row: the other chores, a heartbeat among them, have their turn, too


@dataclass(slots=True)
class Chore:
    name: str
    every_s: float
    run: Callable[[], Awaitable[None]]
    due: float = field(default=0.0)  # monotonic seconds
    trouble: str = ""  # why it failed the last time; empty where it did not


class Upkeep:
    """`wake("scan")` brings a chore forward."""

    def __init__(
        self,
        chores: Sequence[Chore],
        vital: Vital | None = None,
        outage: Trouble | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chores = {chore.name: chore for chore in chores}
        self._vital = vital or Vital("upkeep", inf)
        self._monotonic = monotonic
        self._outage = outage or server_trouble()
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
        with self._vital:
            while not self._stopping:
                now = self._monotonic()
                for chore in self._chores.values():
                    if chore.due <= now and not self._stopping:
                        # Many workers started by one command shall not all come at once.
                        chore.due = now + chore.every_s * random.uniform(0.8, 1.0)
                        await self._do(chore)
                due = min(chore.due for chore in self._chores.values())
                await within(self._woken, due - self._monotonic())
                self._woken.clear()

    async def _do(self, chore: Chore) -> None:
        self._vital.turn()
        try:
            await chore.run()
        except (RedisError, OSError, ProtocolError, QueueMismatch) as error:
            if is_outage(error):
                self._outage.failed(doing=chore.name, error=str(error))
            elif not chore.trouble:
                _log.warning("upkeep failed", chore=chore.name, error=str(error))
            chore.trouble = f"{chore.name}: {error}"
            chore.due = min(chore.due, self._monotonic() + _AGAIN_S)
        else:
            chore.trouble = ""
            self._outage.worked()


class Chores:
    """The chores themselves, for all shards of the queue."""

    def __init__(
        self,
        redis: Any,
        shards: Sequence[ShardKeys],
        reclaimer: Reclaimer,
        lost: LostEntries,
        clock: ServerClock,
        metrics: Metrics,
        heartbeat: Callable[[], Heartbeat],
        keep_metadata: Callable[[], Awaitable[None]],
        *,
        result_ttl_ms: int,
    ) -> None:
        self._redis = redis
        self._shards = shards
        self._reclaimer = reclaimer
        self._lost = lost
        self._clock = clock
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._keep_metadata = keep_metadata
        self._result_ttl_ms = result_ttl_ms
        self._oldest: dict[ShardKeys, dict[Lane, int]] = {}  # when submitted; 0: none waits

    def schedule(self, renew_s: float) -> list[Chore]:
        def every(seconds: float, name: str, run: Callable[[], Awaitable[None]]) -> Chore:
            return Chore(name, min(seconds, renew_s), run)

        return [
            Chore("heartbeat", renew_s, lambda: self._beat(renew_s)),
            Chore("metadata", renew_s, self._keep_metadata),
            every(0.5, "promote", self._promote),
            every(1.0, "expire", self._expire),
            every(1.0, "lost entries", self._lost.look),
            Chore("scan", renew_s, self._scan),
            every(5.0, "queue", self._measure),
            Chore("clock", 60.0, lambda: self._clock.sync(self._redis)),
            Chore("consumers", 60.0, self._drop_consumers),
        ]

    async def _beat(self, renew_s: float) -> None:
        ttl_ms = int(3000 * renew_s)
        heartbeat = self._heartbeat()

        async def send(shard: ShardKeys) -> None:
            oldest = self._oldest.get(shard, {})
            one = replace(
                heartbeat,
                oldest_interactive_ms=oldest.get(Lane.INTERACTIVE, 0),
                oldest_batch_ms=oldest.get(Lane.BATCH, 0),
            )
            await calls.run(self._redis, beat(shard, one, ttl_ms=ttl_ms))

        await self._everywhere(send)

    async def stop_beating(self) -> None:
        """Nobody shall think that the worker is alive, or wait for it."""
        await self._everywhere(lambda shard: self._redis.delete(shard.worker(self._heartbeat().name)))

    async def _promote(self) -> None:
        await self._everywhere(lambda shard: self._exhaust(calls.promote(shard, limit=_LIMIT)))

    async def _expire(self) -> None:
        await self._everywhere(
            lambda shard: self._exhaust(calls.expire(shard, limit=_LIMIT, ttl_ms=self._result_ttl_ms))
        )

    async def _exhaust(self, call: calls.Call[tuple[str, ...]]) -> None:
        """Again, while there is more than one call may do; what is left then waits for the next time."""
        for _ in range(_MOST_CALLS):
            if len(await calls.run(self._redis, call)) < _LIMIT:
                return

    async def _scan(self) -> None:
        await self._everywhere(self._reclaimer.scan)

    async def _measure(self) -> None:
        """What waits, since when, and who is there for it: all is read before any of it is shown."""
        counts = await read_lanes(self._redis, *self._shards)
        for shard in self._shards:
            self._oldest[shard] = {
                lane: await waiting_since_ms(self._redis, shard, lane) or 0 for lane in LANES
            }
        workers = await read_workers(self._redis, *self._shards)
        now_ms = self._clock.now_ms()
        for lane, count in counts.items():
            since = [self._oldest[shard][lane] for shard in self._shards]
            oldest_ms = now_ms - min(filter(None, since), default=now_ms)
            self._metrics.waits(lane, count.waiting or 0, max(0, oldest_ms) / 1000)
        self._metrics.workers.set(len(workers))

    async def _drop_consumers(self) -> None:
        """Of workers that are gone: they hold nothing, and their heartbeat is over."""
        await self._everywhere(self._drop_consumers_of)

    async def _drop_consumers_of(self, shard: ShardKeys) -> None:
        for lane in LANES:
            for row in await self._redis.xinfo_consumers(shard.lane(lane), GROUP):
                name = row["name"].decode(errors="replace")
                if name == RELEASED or row["pending"] or await self._redis.exists(shard.worker(name)):
                    continue
                await calls.run(self._redis, calls.drop_consumer(shard, lane=lane, consumer=name))

    async def _everywhere(self, do: Callable[[ShardKeys], Awaitable[object]]) -> None:
        """On all shards at once, before any trouble is raised: of a Cluster one node may be gone, and the
        shards of the others shall not wait for it."""
        answers = await asyncio.gather(*map(do, self._shards), return_exceptions=True)
        for trouble in answers:
            if isinstance(trouble, BaseException):
                raise trouble
