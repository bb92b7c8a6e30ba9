"""Reads one shard's lanes as a consumer of their groups, and loses no entry that was delivered to it.

The connection belongs to this reader alone. A blocking read is never cancelled: the entries of an unread
reply would stay pending with us, unseen. If a reply is lost anyway, its entries are found in our own pending
list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.keys import GROUP, LANES, ShardKeys
from millstream.wire.messages.script_replies import LaneEntry
from millstream.wire.server_errors import is_outage
from millstream.wire.state.queue_counts import first_unread
from millstream.wire.timing import Backoff
from millstream_worker.jobs.consumer import Consumer

_log = structlog.get_logger(__name__)
_MOST_ENTRIES = 64  # in one read
_MOST_BYTES = 4 * 1024 * 1024  # in one read, plus the excess of its last entry
_PAGE = 200

_Row = tuple[str, bytes, Any]  # lane, id and fields of an entry


@dataclass(slots=True, eq=False)
class LaneReader:
    """`held` returns the entries that this worker knows to be pending with it. `block_s`: how long a read of
    empty lanes blocks. `look_s`: seconds between two comparisons of our pending list with the held entries.
    `max_dead` bounds the dead letters kept for entries that are no jobs.
    """

    consumer: Consumer
    shard: ShardKeys
    held: Callable[[], Collection[tuple[ShardKeys, str, str]]]
    _: KW_ONLY
    block_s: float
    look_s: float
    max_dead: int
    _ungrouped: bool = False  # the lanes or their groups were deleted
    _next_look: float = 0.0  # monotonic seconds: the next check of our own pending list for unseen entries
    _backoff: Backoff = field(default_factory=Backoff)

    @property
    def trouble(self) -> bool:
        """The last read has failed."""
        return self._backoff.failures > 0

    async def read(self, room: int) -> list[LaneEntry]:
        """Up to about `room` new entries, the first lane first. Blocks up to `block_s` if there are none, and
        pauses after an error of the server.
        """
        try:
            if self._ungrouped:
                await calls.run(self.consumer.redis, calls.join(self.shard))
                self._ungrouped = False
            if time.monotonic() >= self._next_look:
                found = await self._unseen()
                self._next_look = time.monotonic() + self.look_s
                if found:
                    return found
            entries = await self._read(min(room, _MOST_ENTRIES))
            self._backoff.reset()
            return entries
        except (RedisError, OSError) as error:
            self._next_look = 0.0  # the reply may have been lost
            await self._recover(error)
            return []

    async def is_empty(self) -> bool:
        """No entry is undelivered, and no job is parked or waits for a retry."""
        if await self.consumer.redis.zcard(self.shard.delayed):
            return False
        for lane in LANES:
            if await self.consumer.redis.zcard(self.shard.parked(lane)):
                return False
            if await first_unread(self.consumer.redis, self.shard.lane(lane)) is not None:
                return False
        return True

    async def _read(self, count: int) -> list[LaneEntry]:
        if delivered := await self._take(count):
            return await self._entries(delivered)
        # Only a wake-up, so one of each lane: entries are taken by bytes.
        everywhere = dict.fromkeys(self.shard.lanes, ">")
        streams = await self.consumer.redis.xreadgroup(
            GROUP, self.consumer.name, everywhere, count=1, block=int(self.block_s * 1000)
        )
        lanes = {self.shard.lane(lane).encode(): lane for lane in LANES}
        woken_by = [(lanes[key], *row) for key, rows in streams for row in rows]
        if woken_by and count > len(woken_by) and not self.held():  # an idle engine takes the burst
            woken_by += await self._take(count - len(woken_by))
        return await self._entries(woken_by)

    async def _take(self, count: int) -> list[_Row]:
        call = calls.take(self.shard, owner=self.consumer.name, max_entries=count, max_bytes=_MOST_BYTES)
        delivered = await calls.run(self.consumer.redis, call)
        return [(one.lane, one.entry_id, one.fields) for one in delivered]

    async def _entries(self, rows: Sequence[_Row]) -> list[LaneEntry]:
        return [entry for row in rows if (entry := await self._entry(*row)) is not None]

    async def _entry(
        self, lane: str, entry_id: bytes, fields: Mapping[bytes, bytes] | Sequence[bytes]
    ) -> LaneEntry | None:
        try:
            return calls.lane_entry(lane, entry_id, fields)
        except ProtocolError as error:  # nobody waits for a result; a dead letter is kept
            _log.warning("entry is not a job", lane=lane, entry_id=entry_id.decode(), error=str(error))
            discard = calls.discard(
                self.shard,
                lane=lane,
                owner=self.consumer.name,
                entry_id=entry_id.decode(),
                reason=str(error),
                max_dead=self.max_dead,
            )
            await calls.run(self.consumer.redis, discard)
            return None

    async def _unseen(self) -> list[LaneEntry]:
        """Entries pending with us but not held: delivered by a reply that never arrived."""
        found: list[LaneEntry] = []
        redis, held = self.consumer.redis, self.held()
        for lane in LANES:
            key, start = self.shard.lane(lane), "-"
            while page := await redis.xpending_range(
                key, GROUP, min=start, max="+", count=_PAGE, consumername=self.consumer.name
            ):
                ids = [row["message_id"] for row in page]
                for entry_id in ids:
                    if (self.shard, lane, entry_id.decode()) not in held:
                        rows = await redis.xrange(key, entry_id, entry_id)
                        found += await self._entries([(lane, *row) for row in rows])
                start = "(" + ids[-1].decode()
        return found

    async def _recover(self, error: Exception) -> None:
        if is_outage(error):
            self.consumer.outage.failed(doing="reading the queue", error=str(error))
        elif not self._backoff.failures:
            _log.warning("queue cannot be read", error=str(error))
        self._ungrouped = self._ungrouped or "NOGROUP" in str(error)
        await self._backoff.pause()
