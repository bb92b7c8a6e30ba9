"""Checks, at most every few seconds before a submit, whether any worker reads the message versions that a
client writes, and images, and whether they keep results for equal requests.
"""

from __future__ import annotations

import contextlib
import time

from redis.exceptions import NoPermissionError

from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.session import NEVER
from millstream.client.submit.requests import EncodedRequest
from millstream.errors import InvalidRequest, MillstreamError, ProtocolError, QueueMismatch, Unavailable
from millstream.openai.unsupported_field import ImagesNotSupported
from millstream.wire.keys import ShardKeys
from millstream.wire.state.heartbeat import Heartbeat, read_workers, text_only_model
from millstream.wire.state.queue_info import QueueInfo
from millstream.wire.versions import FIRST_VERSION, TAKEN, Versions

LOOK_S = 5.0
FRESH_S = 0.2  # a look before one that refuses images for good


class WorkerVersions:
    """The versions that one queue's workers read. Living workers decide. Without any, the window in the
    queue's metadata does, to which every worker adds its own. `keep_results`: one of the living does.
    """

    def __init__(self, jobs: QueueJobs, look_s: float = LOOK_S) -> None:
        self._jobs = jobs
        self._look_s = look_s
        self._next_look_s = NEVER  # of the monotonic clock
        self._looked_s = NEVER
        self.keep_results = False
        self._living: list[Versions] = []  # the window of each living worker
        self._text_only = ""  # the model, if no living worker reads images
        self._next_shards_look_s = NEVER
        self._living_by_shard: list[list[Versions]] = []
        self._window = TAKEN  # of all workers, past ones included

    async def open(self) -> QueueInfo:
        """Open the queue for a submit. Raises QueueMismatch if nobody takes any version of this client's."""
        if time.monotonic() < self._next_look_s:
            return await self._jobs.open()
        first = self._next_look_s == NEVER
        if not first:
            self._next_look_s = time.monotonic() + self._look_s  # for submits that come during this check
        try:
            info = await self._jobs.reopen()
            workers, self._window = await self._read(*info.shard_keys(self._jobs.queue)), info.versions
        except QueueMismatch:
            self._next_look_s = NEVER
            raise
        except Unavailable:
            if first:
                raise
            return await self._jobs.open()  # the submit itself reports it, or outlasts it
        self._living = [worker.versions for worker in workers]
        self._text_only = text_only_model(workers)
        self.keep_results = any(worker.keeps_results for worker in workers)
        self._looked_s = time.monotonic()
        self._next_look_s = self._looked_s + self._look_s
        if not any(self._taken(version) for version in range(TAKEN.low, TAKEN.high + 1)):
            self._next_look_s = NEVER
            raise self._mismatch(FIRST_VERSION)
        return info

    async def refusal(self, request: EncodedRequest) -> QueueMismatch | InvalidRequest | None:
        """The error for this request; None if a worker reads it, or may come that does."""
        if (wrong := self._wrong_with(request)) is None:
            return None
        self._next_look_s = time.monotonic()  # the workers may be replaced at any time
        if request.images and self._next_look_s - self._looked_s > FRESH_S:  # nobody sends it a second time
            with contextlib.suppress(MillstreamError):
                await self.open()
            wrong = self._wrong_with(request)
        return wrong

    def _wrong_with(self, request: EncodedRequest) -> QueueMismatch | InvalidRequest | None:
        if not self._taken(request.version):
            return self._mismatch(request.version)
        if request.images and self._text_only:
            return ImagesNotSupported(request.images, self._text_only)
        return None

    async def serve_everywhere(self, version: int) -> bool:
        """True if every shard has a living worker that reads this version; creates nothing."""
        if time.monotonic() >= self._next_shards_look_s:
            info = await self._jobs.info()
            found = [await self._read(keys) for keys in info.shard_keys(self._jobs.queue)]
            self._living_by_shard = [[worker.versions for worker in workers] for workers in found]
            self._next_shards_look_s = time.monotonic() + self._look_s
        return all(any(version in window for window in living) for living in self._living_by_shard)

    def _taken(self, version: int) -> bool:
        return any(version in window for window in self._living or [self._window])

    async def _read(self, *shards: ShardKeys) -> list[Heartbeat]:
        """The living workers; none also if that is unknown."""
        with self._jobs.session.reach():
            try:
                return await read_workers(self._jobs.session.redis, *shards)
            except (NoPermissionError, ProtocolError):  # not readable by us, or written by a foreign program
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
