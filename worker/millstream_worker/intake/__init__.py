"""Work comes in: from the lanes and from workers that are gone, as much as the engine can hold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Protocol

from redis.exceptions import RedisError

from millstream.wire.keys import ShardKeys
from millstream.wire.replies import LaneEntry
from millstream_worker.capacity import Capacity
from millstream_worker.intake.admission import Admission, Limits
from millstream_worker.intake.lanes import LaneReader
from millstream_worker.intake.preparation import JobBounds
from millstream_worker.intake.reading import Reading
from millstream_worker.intake.starting import Starting
from millstream_worker.table import JobTable
from millstream_worker.vitals import Vital

__all__ = ["Admission", "Intake", "JobBounds", "LaneReader", "Limits", "Reading", "Starting"]


class Overdue(Protocol):
    """Entries that nobody keeps a lease on."""

    async def take(self, shard: ShardKeys, room: int) -> list[LaneEntry]: ...

    def shun(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """Take these no second time while nobody holds them: another worker has to."""


class Intake:
    """One shard's loop. It ends by `stop`, never by being cancelled; `empty` is set when there was nothing to
    do.
    """

    def __init__(
        self,
        reader: LaneReader,
        starting: Starting,
        capacity: Capacity,
        table: JobTable,
        overdue: Overdue,
        *,
        shards: int,
        burst: bool,
        vital: Vital | None = None,
    ) -> None:
        self.empty = asyncio.Event()
        self._reader = reader
        self._starting = starting
        self._capacity = capacity
        self._table = table
        self._overdue = overdue
        self._shards = shards
        self._burst = burst
        self._vital = vital or Vital("read", inf)
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self._table.changed.notify()

    async def run(self) -> None:
        with self._vital:
            while not self._stopping:
                self._vital.turn()
                room = await self._capacity.wait()
                if room and not self._stopping:
                    await self._take_up_to(max(1, room // self._shards))

    def _is_stopping(self) -> bool:
        """Asked by whatever waits for long: so it stamps the turn, too."""
        self._vital.turn()
        return self._stopping

    async def _take_up_to(self, room: int) -> None:
        entries = await self._overdue.take(self._reader.shard, room) or await self._reader.read(room)
        if self._reader.trouble:
            self._vital.turn()
        else:
            self._vital.succeed()
        if entries and self._stopping:  # they came by the read that was waiting when the stop was called
            await self._starting.leave(self._reader.shard, entries)
        elif entries:
            self.empty.clear()
            strangers = await self._starting.take(self._reader.shard, entries, self._is_stopping)
            self._overdue.shun(self._reader.shard, strangers)
        elif self._burst and not len(self._table):
            await self._look_whether_empty()

    async def _look_whether_empty(self) -> None:
        try:
            if await self._reader.is_empty():
                self.empty.set()
        except (RedisError, OSError):
            return  # the next read meets the same trouble, and waits
