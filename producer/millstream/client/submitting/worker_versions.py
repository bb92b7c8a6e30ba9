"""Whether any worker reads the message versions that a client writes: checked before a submit, at most every
few seconds."""

from __future__ import annotations

import time

from redis.exceptions import NoPermissionError

from millstream.client.queue.queue_jobs import QueueJobs
from millstream.client.queue.session import NEVER
from millstream.errors import ProtocolError, QueueMismatch, Unavailable
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.state.queue_info import QueueInfo
from millstream.wire.versions import FIRST_VERSION, TAKEN, Versions

LOOK_S = 5.0


class WorkerVersions:
    """The versions that one queue's workers read. Living workers decide. Where none is alive, the window in
    the queue's metadata does, to which every worker adds its own.
    """

    def __init__(self, jobs: QueueJobs) -> None:
        self._jobs = jobs
        self._next_look_s = NEVER  # of the monotonic clock
        self._living: list[Versions] = []  # what each living worker takes
        self._window = TAKEN  # what those take that are or were

    async def open(self) -> QueueInfo:
        """The queue, for a submit. Raises QueueMismatch where nobody takes any version of this client's."""
        if time.monotonic() < self._next_look_s:
            return await self._jobs.open()
        first = self._next_look_s == NEVER
        if not first:
            self._next_look_s = time.monotonic() + LOOK_S  # for the submits that come while this one looks
        try:
            info = await self._jobs.reopen()
            self._living, self._window = await self._look(info), info.versions
        except QueueMismatch:
            self._next_look_s = NEVER
            raise
        except Unavailable:
            if first:
                raise
            return await self._jobs.open()  # the submit itself tells, or outlasts it
        self._next_look_s = time.monotonic() + LOOK_S
        if not any(self._taken(version) for version in range(TAKEN.low, TAKEN.high + 1)):
            self._next_look_s = NEVER
            raise self._mismatch(FIRST_VERSION)
        return info

    def refusal(self, version: int) -> QueueMismatch | None:
        """The error for a request of this version; None where a worker reads it, or such a one may come."""
        if self._taken(version):
            return None
        self._next_look_s = time.monotonic()  # the workers may be upgraded at any time
        return self._mismatch(version)

    def _taken(self, version: int) -> bool:
        return any(version in window for window in self._living or [self._window])

    async def _look(self, info: QueueInfo) -> list[Versions]:
        """What each living worker takes; none also where that cannot be known."""
        keys = info.keys(self._jobs.queue)
        shards = [keys.shard(shard) for shard in range(info.shards)]
        with self._jobs.session.reach():
            try:
                return [worker.versions for worker in await read_workers(self._jobs.session.redis, *shards)]
            except (NoPermissionError, ProtocolError):  # not ours to see, or written by a stranger
                return []

    def _mismatch(self, version: int) -> QueueMismatch:
        queue = f"queue {self._jobs.queue!r}"
        if self._living:
            windows = ", ".join(sorted({str(window) for window in self._living}))
            return QueueMismatch(
                f"{queue}: no living worker takes message version {version}, which this request needs; "
                f"they take {windows}: upgrade the older side, workers before clients"
            )
        return QueueMismatch(
            f"{queue} takes message version {self._window} and not {version}, which this request needs: no "
            "worker that takes it has served the queue yet; start an upgraded one first"
        )
