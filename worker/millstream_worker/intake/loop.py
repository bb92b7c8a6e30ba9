"""One shard's intake loop: takes entries while there is room, and starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
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


@dataclass(slots=True, eq=False)
class Intake:
    """One shard's loop. It ends by `stop`, never by being cancelled. In burst mode `empty` is set once there
    was nothing to do.
    """

    source: ShardSource
    starting: JobStarter
    capacity: Capacity
    table: JobTable
    watch: LoopWatch
    _: KW_ONLY
    burst: bool
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    _stopping: bool = False

    def stop(self) -> None:
        self._stopping = True
        self.table.changed.notify()

    async def run(self) -> None:
        with self.watch:
            while not self._stopping:
                self.watch.turn()
                room = await self.capacity.wait_share()
                if room and not self._stopping:
                    await self._take_up_to(room)

    def _is_stopping(self) -> bool:
        """Called during long waits; so it counts as a turn of the loop, too."""
        self.watch.turn()
        return self._stopping

    async def _take_up_to(self, room: int) -> None:
        shard = self.source.shard
        entries = await self.source.take(room)
        if self.source.reader.trouble:
            self.watch.turn()
        else:
            self.watch.succeed()
        if entries and self._stopping:  # from the read that was blocking when the stop came
            await self.starting.leave(shard, entries)
        elif entries:
            self.empty.clear()
            foreign = await self.starting.take(shard, entries, self._is_stopping)
            self.source.overdue.ignore(shard, foreign)
        elif self.burst and not len(self.table):
            await self._look_whether_empty()

    async def _look_whether_empty(self) -> None:
        try:
            if await self.source.reader.is_empty():
                self.empty.set()
        except (RedisError, OSError):
            return  # the next read meets the same error, and waits
