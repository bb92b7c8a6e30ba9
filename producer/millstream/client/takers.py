"""Whether anybody takes what this client writes: looked at before a submit, again every few seconds."""

from __future__ import annotations

import time

from redis.exceptions import NoPermissionError

from millstream.client.jobs import Jobs
from millstream.client.session import NEVER
from millstream.errors import ProtocolError, QueueMismatch, Unavailable
from millstream.wire.heartbeat import read_workers
from millstream.wire.queue_info import QueueInfo
from millstream.wire.versions import WIRE_VERSION, Versions

LOOK_S = 5.0
OURS = Versions(WIRE_VERSION, WIRE_VERSION)


class Takers:
    """Of one queue. Living workers decide. Where none is alive, jobs may wait for those that were: the window
    of versions in the queue's metadata decides, to which every worker adds its own.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._next_look_s = NEVER  # of the monotonic clock

    async def open(self) -> QueueInfo:
        """The queue, for a submit. Raises QueueMismatch where nobody takes this client's version."""
        if time.monotonic() < self._next_look_s:
            return await self._jobs.open()
        first = self._next_look_s == NEVER
        if not first:
            self._next_look_s = time.monotonic() + LOOK_S  # for the submits that come while this one looks
        try:
            info = await self._jobs.reopen()
            if info.versions != OURS:  # else there was never a worker that takes another
                self._judge(info, await self._living(info))
        except QueueMismatch:
            self._next_look_s = NEVER
            raise
        except Unavailable:
            if first:
                raise
            return await self._jobs.open()  # the submit itself tells, or outlasts it
        self._next_look_s = time.monotonic() + LOOK_S
        return info

    async def _living(self, info: QueueInfo) -> list[Versions]:
        """What each living worker takes; none also where that cannot be known."""
        keys = info.keys(self._jobs.queue)
        shards = [keys.shard(shard) for shard in range(info.shards)]
        with self._jobs.session.reach():
            try:
                return [worker.versions for worker in await read_workers(self._jobs.session.redis, *shards)]
            except (NoPermissionError, ProtocolError):  # not ours to see, or written by a stranger
                return []

    def _judge(self, info: QueueInfo, living: list[Versions]) -> None:
        queue = f"queue {self._jobs.queue!r}"
        if living and not any(WIRE_VERSION in window for window in living):
            windows = ", ".join(sorted({str(window) for window in living}))
            raise QueueMismatch(
                f"{queue}: no living worker takes message version {WIRE_VERSION}, which this client writes; "
                f"they take {windows}: upgrade the older side, workers before clients"
            )
        if not living and WIRE_VERSION not in info.versions:
            raise QueueMismatch(
                f"{queue} takes message version {info.versions} and not {WIRE_VERSION}, which this client "
                "writes: no worker that takes it has served the queue yet; start an upgraded one first"
            )
