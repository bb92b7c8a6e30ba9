"""Reads queues for those who scrape their series: at most once a second, however many ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from millstream.client.session.options import ClientOptions
from millstream.client.session.queue_status import LaneStatus, QueueStatus
from millstream.errors import MillstreamError
from millstream.wire.keys import Lane
from millstream.wire.state.queue_counts import LaneNumbers
from millstream.wire.state.queue_series import QueueSeries, QueueSnapshot

AGAIN_S = 1.0
AT_ONCE = 8  # reads of a scrape
LONGEST_READ_S = 3.0
LONGEST_S = 8.0  # of all reads for a scrape: Prometheus gives up after 10 s
Read = Callable[[], Awaitable[QueueStatus]]


class QueueScrape:
    """`reads`: how each queue is read. `open_page`: the series are shown to whoever asks, so they name no
    tenant and quote no text.
    """

    def __init__(self, series: QueueSeries, reads: Mapping[str, Read], *, open_page: bool = False) -> None:
        self._series = series
        self._reads = reads
        self._open_page = open_page
        self._lock = asyncio.Lock()
        self._ended_s = float("-inf")  # the last reads, on the monotonic clock

    async def refresh(self) -> None:
        """Shows the queues as they are now, or were within a second; those that cannot be read as such."""
        async with self._lock:
            if time.monotonic() - self._ended_s < AGAIN_S:
                return
            give_up = asyncio.get_running_loop().time() + LONGEST_S
            places = asyncio.Semaphore(AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for queue, read in self._reads.items():
                    group.create_task(self._show(queue, read, places, give_up))
            self._ended_s = time.monotonic()

    async def _show(self, queue: str, read: Read, places: asyncio.Semaphore, give_up: float) -> None:
        self._series.show(queue, await self._snapshot(read, places, give_up))

    async def _snapshot(self, read: Read, places: asyncio.Semaphore, give_up: float) -> QueueSnapshot | None:
        try:
            async with asyncio.timeout_at(give_up), places, asyncio.timeout(LONGEST_READ_S):
                return snapshot_of(await read(), open_page=self._open_page)
        except (MillstreamError, TimeoutError):
            return None


def snapshot_of(status: QueueStatus, *, open_page: bool = False) -> QueueSnapshot:
    """Converts a queue's status to what its series show."""
    known = {lane.lane: age for lane in status.lanes if (age := _oldest_s(lane)) is not None}
    return QueueSnapshot(
        lanes={Lane(lane.lane): LaneNumbers(lane.waiting, lane.running) for lane in status.lanes},
        oldest_s=known,
        workers=None if status.workers is None else (*status.workers, *(status.loading or ())),
        models=None if status.workers is None else len(status.models),
        numbers=replace(status, tenants=None) if open_page else status,
        shards=status.shards,
        shard_limit_bytes=status.max_bytes,
        shard_limit_jobs=ClientOptions().max_entries,
        reasons=not open_page,
    )


def _oldest_s(lane: LaneStatus) -> float | None:
    """Returns the age of a lane's oldest waiting job; 0: none waits; None: it is not known."""
    return 0.0 if lane.waiting == 0 else lane.oldest_s
