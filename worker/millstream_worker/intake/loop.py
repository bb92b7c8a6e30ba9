"""One shard's intake loop: takes entries while there is room, and starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from millstream.wire.keys import ShardKeys
from millstream.wire.messages.script_replies import LaneEntry
from millstream_worker.intake.capacity import Capacity
from millstream_worker.intake.job_starter import JobStarter
from millstream_worker.intake.lanes import LaneReader
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch


class Overdue(Protocol):
    """Entries whose lease has expired."""

    async def take(self, shard: ShardKeys, room: int) -> list[LaneEntry]: ...

    def ignore(self, shard: ShardKeys, entries: Sequence[LaneEntry]) -> None:
        """Leave these to other workers, for as long as nobody holds them."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardSource:
    """One shard's entries for this worker: overdue ones of others first, then new ones of its lanes."""

    reader: LaneReader
    overdue: Overdue

    @property
    def shard(self) -> ShardKeys:
        return self.reader.shard

    async def take(self, room: int) -> list[LaneEntry]:
        return await self.overdue.take(self.shard, room) or await self.reader.read(room)


class Intake:
    """One shard's loop. It ends by `stop`, never by being cancelled. In burst mode `empty` is set once there
    was nothing to do.
    """

    def __init__(
        self,
        source: ShardSource,
        starting: JobStarter,
        capacity: Capacity,
        table: JobTable,
        watch: LoopWatch,
        *,
        burst: bool,
    ) -> None:
        self.empty = asyncio.Event()
        self._source = source
        self._starting = starting
        self._capacity = capacity
        self._table = table
        self._watch = watch
        self._burst = burst
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        self._table.changed.notify()

    async def run(self) -> None:
        with self._watch:
            while not self._stopping:
                self._watch.turn()
                room = await self._capacity.wait_share()
                if room and not self._stopping:
                    await self._take_up_to(room)

    def _is_stopping(self) -> bool:
        """Called during long waits; so it counts as a turn of the loop, too."""
        self._watch.turn()
        return self._stopping

    async def _take_up_to(self, room: int) -> None:
        shard = self._source.shard
        entries = await self._source.take(room)
        if self._source.reader.trouble:
            self._watch.turn()
        else:
            self._watch.succeed()
        if entries and self._stopping:  # from the read that was blocking when the stop came
            await self._starting.leave(shard, entries)
        elif entries:
            self.empty.clear()
            foreign = await self._starting.take(shard, entries, self._is_stopping)
            self._source.overdue.ignore(shard, foreign)
        elif self._burst and not len(self._table):
            await self._look_whether_empty()

    async def _look_whether_empty(self) -> None:
        try:
            if await self._source.reader.is_empty():
                self.empty.set()
        except (RedisError, OSError):
            return  # the next read meets the same error, and waits
