"""Jobs of message versions that this worker does not take: delivered here, released, and left to workers that
take them. This worker does not claim them again, and warns of those for which no such worker is alive.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import structlog

from millstream.errors import ProtocolError
from millstream.wire.keys import ShardKeys
from millstream.wire.messages.script_replies import LaneEntry
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.versions import TAKEN
from millstream_worker.observe.metrics import Metrics

_log = structlog.get_logger(__name__)
_WARN_S = 60.0  # between two lines about the same shard
_LOOKED_AT = 500  # jobs in one check: a queue may hold very many
_NAMED = 5  # versions in one line: anybody may write any number

Key = tuple[str, str]  # lane, entry id


@dataclass(frozen=True, slots=True)
class ForeignEntry:
    job_id: str
    version: int
    since: float  # monotonic seconds


@dataclass(slots=True, eq=False)
class ForeignVersions:
    """For all shards. `leave` adds entries that intake has released; `saw` compares with a scan."""

    redis: Any
    metrics: Metrics
    _: KW_ONLY
    look_s: float
    monotonic: Callable[[], float] = time.monotonic
    # ordered by their last look
    _left: dict[ShardKeys, dict[Key, ForeignEntry]] = field(default_factory=dict)
    _waiting: dict[ShardKeys, int] = field(default_factory=dict)
    _next_look: dict[ShardKeys, float] = field(default_factory=dict)
    _next_line: dict[ShardKeys, float] = field(default_factory=dict)

    def leave(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        now = self.monotonic()
        self._left.setdefault(shard, {}).update(
            {
                (entry.lane, entry.entry_id): ForeignEntry(entry.job_id, entry.version, now)
                for entry in entries
            }
        )

    def has(self, shard: ShardKeys, lane: str, entry_id: str) -> bool:
        return (lane, entry_id) in self._left.get(shard, ())

    async def saw(
        self, shard: ShardKeys, pending: Iterable[Key], released: Iterable[Key], since: float
    ) -> None:
        """Apply a scan that began at `since`: it found these entries delivered, and these of them released.
        Raises redis-py's errors.
        """
        left = self._left.get(shard, {})
        kept = set(pending)
        for key in [key for key, one in left.items() if key not in kept and one.since < since]:
            del left[key]  # another worker has ended or parked it
        waiting = {key: left[key] for key in released if key in left}
        self._waiting[shard] = len(waiting)
        self.metrics.other_versions.set(sum(self._waiting.values()))
        now = self.monotonic()
        if waiting and now >= self._next_look.get(shard, 0.0):
            self._next_look[shard] = now + self.look_s
            await self._forget_ended(shard, waiting)
            await self._warn(shard, waiting, now)

    async def _forget_ended(self, shard: ShardKeys, waiting: Mapping[Key, ForeignEntry]) -> None:
        """Check for jobs that were cancelled or expired meanwhile, if no worker is left to drop them: the
        next scan does.
        """
        left = self._left[shard]
        some = [key for key in left if key in waiting][:_LOOKED_AT]
        async with self.redis.pipeline(transaction=False) as pipeline:
            for key in some:
                pipeline.hmget(shard.job(left[key].job_id), "state", "entry")
            rows = await pipeline.execute(raise_on_error=False)
        for key, row in zip(some, rows, strict=True):
            one = left.pop(key)
            if isinstance(row, Exception) or row == [b"queued", key[1].encode()]:
                left[key] = one

    async def _warn(self, shard: ShardKeys, waiting: Mapping[Key, ForeignEntry], now: float) -> None:
        """Warn, unless living workers take them and only have no room yet."""
        if now < self._next_line.get(shard, 0.0):
            return
        try:
            windows = [worker.versions for worker in await read_workers(self.redis, shard)]
        except ProtocolError:  # an unreadable worker may not take them either
            windows = []
        jobs = Counter(one.version for one in waiting.values())
        stuck = {
            version: count for version, count in jobs.items() if not any(version in one for one in windows)
        }
        if stuck:
            self._next_line[shard] = now + _WARN_S
            _log.warning(
                "jobs of other versions wait for a worker that takes them; start one, or cancel them",
                jobs=sum(stuck.values()),
                versions=sorted(stuck)[:_NAMED],
                taken_here=str(TAKEN),
            )
