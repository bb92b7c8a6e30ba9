"""The queues that the gateway serves, and their workers: looked up once a second, beside requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.errors import MillstreamError, ProtocolError, Unavailable
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.logs.failure_log import FailureLog, FailuresOf
from millstream.openai.api_error import NO_RETRY, ApiError
from millstream.wire.state.heartbeat import SERVING, Heartbeat, read_workers
from millstream.wire.state.queue_info import QueueInfo, read_queue
from millstream.wire.timing import within

FRESH_S = 1.0
_STALE_S = 2 * FRESH_S  # the server did not answer: whoever asks now is told so


@dataclass(frozen=True, slots=True)
class ServedQueue:
    """One queue, as a model. `checkpoint`: the workers' model, or that of the last one that lived; empty
    where none did. `shards`: as `own_id_of` takes them.
    """

    queue: str
    workers: tuple[Heartbeat, ...] = ()
    last_model: str = ""
    readable: bool = True  # its settings on the server
    shards: int = 1

    @property
    def context_length(self) -> int:
        """Most tokens of a request that any of its workers takes; 0 if none says so."""
        return min((one.context_length for one in self.workers if one.context_length), default=0)

    @property
    def checkpoint(self) -> str:
        return next((one.model for one in self.workers if one.model), self.last_model)

    @property
    def ready(self) -> bool:
        return any(one.state == SERVING for one in self.workers)

    @property
    def input_modalities(self) -> list[str]:
        return ["text", "image"] if any(one.images for one in self.workers) else ["text"]

    def takes(self, version: int) -> bool:
        """True if one of its workers reads messages of this version."""
        return any(version in one.versions for one in self.workers)

    @property
    def created_s(self) -> int:
        """When the oldest living worker started, in Unix seconds; 0 without one."""
        return min((one.started_ms for one in self.workers), default=0) // 1000


class QueueDirectory:
    """`run` goes on as long as the gateway does; without it, requests look themselves. `own`: the queue whose
    worker was started with the gateway, and ends it if it ends.
    """

    def __init__(self, redis: GatewayRedis, queues: Sequence[str], own: str | None = None) -> None:
        self.queues = tuple(dict.fromkeys(queues))
        self._redis = redis
        self._lock = asyncio.Lock()
        self._found: tuple[ServedQueue, ...] = ()
        self._found_s = float("-inf")  # of the monotonic clock
        self._own = own
        self._unseen = FailureLog("queues cannot be looked at", "queues can be looked at again")
        self._damaged = FailuresOf("settings of a queue are damaged; its requests are refused")
        self._loaded = asyncio.Event()
        if own is None:
            self._loaded.set()

    async def seen_by(self, caller: ApiKey) -> list[ServedQueue]:
        """Those that the caller may use. Raises Unavailable."""
        await self._look_if_older(_STALE_S)
        return [one for one in self._found if caller.may_use(one.queue)]

    async def own_loaded(self, timeout_s: float | None = None) -> None:
        """Wait until the gateway's own worker, if it has one, has loaded its model; at most so long."""
        await within(self._loaded, timeout_s)

    def has_worker(self, queue: str) -> bool:
        """True if one served the queue at the last look."""
        return any(one.ready for one in self._found if one.queue == queue)

    async def run(self) -> None:
        """Look again and again, for ever."""
        while True:
            try:
                await self._look_if_older(0.0)
                self._unseen.worked()
            except Unavailable:
                pass  # the log has it; again in a second
            except MillstreamError as error:
                self._unseen.failed(error=str(error))
            await asyncio.sleep(FRESH_S)

    async def find(self, model: str, caller: ApiKey) -> ServedQueue:
        """The queue of this name, or the one whose workers have this checkpoint. Raises ApiError 404,
        Unavailable.
        """
        seen = await self.seen_by(caller)
        for name in ("queue", "checkpoint"):
            for one in seen:
                if model and getattr(one, name) == model:
                    return _readable(one)
        known = ", ".join(one.queue for one in seen) or "none"
        message = f"model: there is no {model[:200]!r}, or this key may not use it; there are {known}"
        raise ApiError(404, message, "model_not_found", "model")

    async def _look_if_older(self, seconds: float) -> None:
        if time.monotonic() - self._found_s <= seconds:
            return
        async with self._lock:
            if time.monotonic() - self._found_s > seconds:
                with self._redis.reach():
                    self._found = tuple([await self._look(queue) for queue in self.queues])
                self._found_s = time.monotonic()
                if any(one.queue == self._own and one.ready for one in self._found):
                    self._loaded.set()

    async def _look(self, queue: str) -> ServedQueue:
        """One whose settings are damaged takes no requests, and keeps none from the others."""
        redis = self._redis.client
        try:
            info = await read_queue(redis, queue) or QueueInfo()
        except ProtocolError as error:
            self._damaged.failed(queue, queue=queue, error=str(error))
            return ServedQueue(queue, readable=False)
        workers = await read_workers(redis, *info.shard_keys(queue))
        kept = any(worker.keeps_results for worker in workers)
        return ServedQueue(queue, tuple(workers), info.model, shards=info.shards if kept else 1)


def _readable(served: ServedQueue) -> ServedQueue:
    if not served.readable:
        message = f"the settings of queue {served.queue!r} cannot be read; tell the gateway's operator"
        raise ApiError(500, message, "unreadable", headers=NO_RETRY)
    return served
