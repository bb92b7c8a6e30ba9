"""The loop of a worker's periodic tasks; each fails by itself."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError, QueueMismatch
from millstream.logs.failure_log import FailureLog, server_failures
from millstream.wire.keys import ShardKeys
from millstream.wire.server_errors import is_outage
from millstream.wire.timing import within
from millstream_worker.observe.watchdog import LoopWatch

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0  # after a failure


@dataclass(slots=True)
class PeriodicTask:
    name: str
    every_s: float
    run: Callable[[], Awaitable[None]]
    due: float = field(default=0.0)  # monotonic seconds
    trouble: str = ""  # the error of its last run; empty if there was none


class Upkeep:
    """`wake("scan")` brings a task forward."""

    def __init__(
        self,
        tasks: Sequence[PeriodicTask],
        watch: LoopWatch | None = None,
        outage: FailureLog | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._watch = watch or LoopWatch("upkeep", inf)
        self._monotonic = monotonic
        self._outage = outage or server_failures()
        self._woken = asyncio.Event()
        self._stopping = False

    @property
    def trouble(self) -> str:
        """The error of a task whose last run failed; empty if there is none."""
        return next((task.trouble for task in self._tasks.values() if task.trouble), "")

    def wake(self, name: str) -> None:
        self._tasks[name].due = 0.0
        self._woken.set()

    def stop(self) -> None:
        self._stopping = True
        self._woken.set()

    async def run(self) -> None:
        """Run until `stop`, which is a flag, since a cancellation can be lost inside redis-py: on Python 3.11
        its `timeout(0)` around the check of a pooled connection swallows one that arrives just then.
        """
        with self._watch:
            while not self._stopping:
                now = self._monotonic()
                for task in self._tasks.values():
                    if task.due <= now and not self._stopping:
                        # random, so that many workers started together do not run it at the same time
                        task.due = now + task.every_s * random.uniform(0.8, 1.0)
                        await self._do(task)
                due = min(task.due for task in self._tasks.values())
                await within(self._woken, due - self._monotonic())
                self._woken.clear()

    async def _do(self, task: PeriodicTask) -> None:
        self._watch.turn()
        try:
            await task.run()
        except (RedisError, OSError, ProtocolError, QueueMismatch) as error:
            if is_outage(error):
                self._outage.failed(doing=task.name, error=str(error))
            elif not task.trouble:
                _log.warning("upkeep failed", task=task.name, error=str(error))
            task.trouble = f"{task.name}: {error}"
            task.due = min(task.due, self._monotonic() + _AGAIN_S)
        else:
            task.trouble = ""
            self._outage.worked()


async def on_all(shards: Sequence[ShardKeys], do: Callable[[ShardKeys], Awaitable[object]]) -> None:
    """On all shards at once, before any error is raised: if one node of a Cluster is gone, the shards of the
    others do not wait for it."""
    replies = await asyncio.gather(*map(do, shards), return_exceptions=True)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
