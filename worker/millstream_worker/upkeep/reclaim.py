"""Finds entries that nobody keeps a lease on. A server that was down, or a clock that jumped, makes every
entry look idle: hence an entry counts as overdue only when the same owner was seen overdue twice, one renewal
apart on this process' own monotonic clock. In between every living worker has renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.wire import calls
from millstream.wire.keys import LANES, RELEASED, ShardKeys
from millstream.wire.replies import LaneEntry
from millstream_worker.metrics import Metrics

_log = structlog.get_logger(__name__)
_PAGE = 500
_MOST_CLAIMED = 64  # in one call, which answers with their payloads
_MOST_SHUNNED = 10_000


@dataclass(frozen=True, slots=True)
class Sighting:
    owner: str
    since: float  # monotonic seconds


class Reclaimer:
    """`scan` looks (upkeep, regularly); `take` claims what was found (intake, when it has room)."""

    def __init__(
        self,
        redis: Any,
        owner: str,
        metrics: Metrics,
        *,
        lease_s: float,
        renew_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._owner = owner
        self._metrics = metrics
        self._lease_ms = int(lease_s * 1000)
        self._renew_s = renew_s
        self._monotonic = monotonic
        self._sightings: dict[tuple[ShardKeys, str], dict[str, Sighting]] = {}
        self._shunned: dict[str, None] = {}  # in the order of their coming

    async def scan(self, shard: ShardKeys) -> None:
        """Look at all delivered entries of a shard once. Raises redis-py's errors."""
        now = self._monotonic()
        for lane in LANES:
            before = self._sightings.get((shard, lane), {})
            seen: dict[str, Sighting] = {}
            start = "-"
            while page := await calls.scan_pending(self._redis, shard, lane=lane, start=start, count=_PAGE):
                for entry in page:
                    if self._is_overdue(entry.owner, entry.idle_ms) and entry.entry_id not in self._shunned:
                        last = before.get(entry.entry_id)
                        same = last is not None and last.owner == entry.owner
                        seen[entry.entry_id] = last if last and same else Sighting(entry.owner, now)
                start = f"({page[-1].entry_id}"
            self._sightings[shard, lane] = seen

    async def take(self, shard: ShardKeys, room: int) -> list[LaneEntry]:
        """Claim up to `room` entries that are overdue by now; none where the server has trouble."""
        taken: list[LaneEntry] = []
        for lane in LANES:
            found = self._ripe(shard, lane, min(room, _MOST_CLAIMED) - len(taken))
            if found:
                taken += await self._claim(shard, lane, found)
        return taken

    def shun(self, entries: Sequence[LaneEntry]) -> None:
        self._shunned |= dict.fromkeys(entry.entry_id for entry in entries)
        while len(self._shunned) > _MOST_SHUNNED:
            del self._shunned[next(iter(self._shunned))]

    async def _claim(self, shard: ShardKeys, lane: str, found: Sequence[tuple[str, str]]) -> list[LaneEntry]:
        call = calls.reclaim(
            shard, lane=lane, owner=self._owner, overdue=found, min_idle_ms=self._lease_ms, died=True
        )
        try:
            entries = await calls.run(self._redis, call)
        except (RedisError, OSError) as error:
            _log.warning("overdue jobs not taken over yet", jobs=len(found), error=str(error))
            return []
        for entry_id, _ in found:
            self._sightings[shard, lane].pop(entry_id, None)
        owners = dict(found)
        lost = [entry for entry in entries if owners[entry.entry_id] != RELEASED]
        if lost:
            self._metrics.reclaimed.inc(len(lost))
            _log.warning("jobs taken over", jobs=len(lost), owners=sorted({owners[e.entry_id] for e in lost}))
        return list(entries)

    def _ripe(self, shard: ShardKeys, lane: str, room: int) -> list[tuple[str, str]]:
        now = self._monotonic()
        sightings = self._sightings.get((shard, lane), {})
        ripe = [
            (entry_id, sighting.owner)
            for entry_id, sighting in sightings.items()
            if sighting.owner == RELEASED or now - sighting.since >= self._renew_s
        ]
        return ripe[: max(0, room)]

    def _is_overdue(self, owner: str, idle_ms: int) -> bool:
        return owner == RELEASED or (owner != self._owner and idle_ms >= self._lease_ms)
