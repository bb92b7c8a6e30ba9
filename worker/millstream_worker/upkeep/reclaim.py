"""Takes over entries whose lease has expired. A server that was down, or a clock that jumped, makes every
entry look idle: so an entry counts as overdue only when the same owner was seen overdue for one and a half
renewal periods of this process' own monotonic clock, in which the server took writes. In that time every
living worker has renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError
from millstream.logs.failure_log import FailureLog
from millstream.wire import calls
from millstream.wire.keys import LANES, RELEASED, ShardKeys
from millstream.wire.messages.script_replies import LaneEntry
from millstream.wire.server_errors import is_damage, is_outage
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.metrics import Metrics
from millstream_worker.upkeep.foreign_versions import ForeignVersions

_log = structlog.get_logger(__name__)
_PAGE = 500
_SURE = 1.5  # renewal periods: a living owner's renewals may be a little more than one apart
_MOST_CLAIMED = 8  # in one call, whose reply has their payloads, of up to 16 MiB each


@dataclass(frozen=True, slots=True)
class Sighting:
    owner: str
    since: float  # monotonic seconds


@dataclass(slots=True, eq=False)
class Reclaimer:
    """`scan` looks for overdue entries (a periodic task); `take` claims them (intake, when it has room).
    Equal on all workers of a queue: the age at which a lease is overdue, and the period of renewals.
    """

    consumer: Consumer
    metrics: Metrics
    _: KW_ONLY
    lease_s: float
    renew_s: float
    monotonic: Callable[[], float] = time.monotonic
    _sightings: dict[tuple[ShardKeys, str], dict[str, Sighting]] = field(default_factory=dict)
    _damage: FailureLog = field(init=False)
    _foreign: ForeignVersions = field(init=False)

    def __post_init__(self) -> None:
        redis, clock = self.consumer.redis, self.monotonic
        self._damage = FailureLog("overdue jobs not taken over yet", monotonic=clock)
        self._foreign = ForeignVersions(redis, self.metrics, look_s=self.renew_s, monotonic=clock)

    @property
    def _lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    async def scan(self, shard: ShardKeys) -> None:
        """Look at all delivered entries of a shard once. Raises redis-py's errors."""
        began = self.monotonic()
        pending: list[tuple[str, str]] = []
        released: list[tuple[str, str]] = []
        for lane in LANES:
            before = self._sightings.get((shard, lane), {})
            seen: dict[str, Sighting] = {}
            redis, start = self.consumer.redis, "-"
            while page := await calls.scan_pending(redis, shard, lane=lane, start=start, count=_PAGE):
                now = self.monotonic()  # the reply may have taken long: an entry counts as seen on arrival
                for entry in page:
                    pending.append((lane, entry.entry_id))
                    if entry.owner == RELEASED:
                        released.append((lane, entry.entry_id))
                        if self._foreign.has(shard, lane, entry.entry_id):
                            continue
                    if self._is_overdue(entry.owner, entry.idle_ms):
                        last = before.get(entry.entry_id)
                        same = last is not None and last.owner == entry.owner
                        seen[entry.entry_id] = last if last and same else Sighting(entry.owner, now)
                start = f"({page[-1].entry_id}"
            self._sightings[shard, lane] = seen
        await self._foreign.saw(shard, pending, released, began)

    async def take(self, shard: ShardKeys, room: int) -> list[LaneEntry]:
        """Claim up to `room` overdue entries; none if the server does not answer."""
        taken: list[LaneEntry] = []
        for lane in LANES:
            found = self._ripe(shard, lane, min(room, _MOST_CLAIMED) - len(taken))
            if found:
                taken += await self._claim(shard, lane, found)
        return taken

    def ignore(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """Leave these to workers of other versions, for as long as nobody holds them."""
        self._foreign.leave(shard, entries)

    async def _claim(self, shard: ShardKeys, lane: str, found: Sequence[tuple[str, str]]) -> list[LaneEntry]:
        owner = self.consumer.name
        claims = [  # one by one: each passes or fails by itself
            calls.reclaim(shard, lane=lane, owner=owner, overdue=[one], min_idle_ms=self._lease_ms, died=True)
            for one in found
        ]
        try:
            replies = await calls.run_many(self.consumer.redis, claims)
        except (RedisError, OSError) as error:
            replies = [error] * len(claims)
        entries: list[LaneEntry] = []
        for (entry_id, _), reply in zip(found, replies, strict=True):
            if not isinstance(reply, Exception):
                entries += reply
            # Claimed or not, it has had its turn. An entry that is no job is ours now: the reader finds and
            # drops it.
            self._sightings[shard, lane].pop(entry_id, None)
        if all(map(_is_refusal, replies)):  # then no owner could renew either; each has time to after that
            self._sightings[shard, lane].clear()
        if troubles := [reply for reply in replies if isinstance(reply, Exception)]:
            trouble = self.consumer.outage if is_outage(troubles[0]) else self._damage
            trouble.failed(doing="takeover of overdue jobs", jobs=len(troubles), error=str(troubles[0]))
        owners = dict(found)
        lost = [entry for entry in entries if owners[entry.entry_id] != RELEASED]
        if lost:
            self.metrics.reclaimed.inc(len(lost))
            _log.warning("jobs taken over", jobs=len(lost), owners=sorted({owners[e.entry_id] for e in lost}))
        return entries

    def _ripe(self, shard: ShardKeys, lane: str, room: int) -> list[tuple[str, str]]:
        now = self.monotonic()
        sightings = self._sightings.get((shard, lane), {})
        ripe = [
            (entry_id, sighting.owner)
            for entry_id, sighting in sightings.items()
            if sighting.owner == RELEASED or now - sighting.since >= _SURE * self.renew_s
        ]
        return ripe[: max(0, room)]

    def _is_overdue(self, owner: str, idle_ms: int) -> bool:
        return owner == RELEASED or (owner != self.consumer.name and idle_ms >= self._lease_ms)


def _is_refusal(reply: object) -> bool:
    """The server takes no writes: it is down, a slot moves, replicas are missing."""
    return isinstance(reply, Exception) and not (isinstance(reply, ProtocolError) or is_damage(reply))
