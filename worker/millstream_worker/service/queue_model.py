"""The one model of the queue. A worker of another one is refused before it loads, or replaces the model where
that is asked for; a worker whose model was replaced takes no more jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError, QueueMismatch
from millstream.wire import calls
from millstream.wire.keys import QueueKeys, ShardKeys
from millstream.wire.server_errors import refusal
from millstream.wire.state.queue_info import (
    ModelIdentity,
    QueueInfo,
    open_queue,
    record_worker,
    serve_model,
)
from millstream.wire.timing import Backoff, within
from millstream.wire.versions import TAKEN
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine_link.supervisor import Unusable
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.watchdog import LoopWatch
from millstream_worker.service.stop_signal import StopSignal

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class QueueModel:
    """`replaced`: the reason why this worker takes no more jobs; empty while the queue has its model."""

    def __init__(
        self,
        consumer: Consumer,
        queue: str,
        info: QueueInfo,
        stop: StopSignal,
        watch: LoopWatch,
        *,
        replace: bool,
    ) -> None:
        """`watch`: of the loop that waits in `check` and `record`."""
        self.replaced = ""
        self._consumer = consumer
        self._queue = queue
        self._info = info
        self._stop = stop
        self._watch = watch
        self._replace = replace
        self._digest = ""  # recorded for this worker; empty again once it was replaced
        self._refused = False  # a shard has refused a start since `keep` last looked

    @property
    def shards(self) -> Sequence[ShardKeys]:
        keys = self._info.keys(self._queue)
        return [keys.shard(shard) for shard in range(self._info.shards)]

    async def check(self, model: str, digest: str) -> None:
        """Check a model that is about to be loaded. Raises Unusable if the queue has another one."""
        await self._reach("checking the queue's model", lambda: self._check(model, digest))

    async def record(self, info: EngineInfo) -> None:
        """Record the loaded model in queue and shards. Raises Unusable if the queue has another one."""
        await self._reach("recording the model in the queue", lambda: self._record(info))

    def refuse(self) -> None:
        """A shard has refused a start, as it serves another model."""
        self._refused = True

    async def keep(self) -> None:
        """Write the metadata again if the server was flushed: a client that finds none would create another
        queue. Ends this worker's work if its model was replaced. Raises QueueMismatch if the queue was
        created anew with other settings.
        """
        digest, refused = self._digest, self._refused
        self._refused = False  # one that comes from here on is looked at by the next run
        try:
            stored = await self._open()
        except BaseException:
            self._refused |= refused
            raise
        if not digest or digest != self._digest:  # recorded meanwhile
            return
        if not stored.model_digest:  # written by an older worker, or before this one's
            call = record_worker(QueueKeys(self._queue), TAKEN, model=self._info.model, model_digest=digest)
            stored = await calls.run(self._consumer.redis, call)
        if ModelIdentity(self._info.model, digest).is_other(stored.served):
            self._give_way(stored)
        elif refused:
            await self._serve()

    def _give_way(self, stored: QueueInfo) -> None:
        self._info, self._digest = stored, ""  # from now on it is the other's
        _log.warning("model replaced", queue=self._queue, model=stored.model)
        if not self._stop.limited.is_set():  # else it is asked to end anyway
            self.replaced = (
                f"queue {self._queue!r} now has another model, {stored.model}: this worker takes no more of "
                "its jobs"
            )
        self._stop.asked.set()

    async def _check(self, model: str, digest: str) -> None:
        stored = await self._open()
        if not self._replace and ModelIdentity(model, digest).is_other(stored.served):
            raise self._unusable(stored, model)

    async def _record(self, info: EngineInfo) -> None:
        await self._open()
        call = record_worker(
            QueueKeys(self._queue),
            TAKEN,
            model=info.model,
            model_digest=info.digest,
            replace=self._replace,
        )
        stored = await calls.run(self._consumer.redis, call)
        if ModelIdentity(info.model, info.digest).is_other(stored.served):
            raise self._unusable(stored, info.model)
        self._info, self._digest = stored, info.digest
        self._replace = False  # once: it may be replaced itself before its engine starts again
        if info.digest:
            await self._serve()

    async def _open(self) -> QueueInfo:
        info = self._info
        return await open_queue(
            self._consumer.redis,
            self._queue,
            shards=info.shards,
            pubsub=info.pubsub,
            takes=TAKEN,
            known=info,
        )

    async def _serve(self) -> None:
        served = [serve_model(shard, self._digest) for shard in self.shards]
        for reply in await calls.run_many(self._consumer.redis, served):
            if isinstance(reply, Exception):
                raise reply

    async def _reach(self, doing: str, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step while the server does not answer, until the worker is stopped."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._stop.asked.is_set():
            self._watch.turn()
            try:
                await step()
                return
            except (QueueMismatch, ProtocolError) as error:
                raise Unusable(str(error)) from error
            except (RedisError, OSError) as error:
                if (refused := refusal(error)) is not None:
                    raise Unusable(refused) from error
                self._consumer.outage.failed(doing=doing, error=str(error))
            await within(self._stop.asked, backoff.next_s())

    def _unusable(self, stored: QueueInfo, model: str) -> Unusable:
        return Unusable(
            f"queue {self._queue!r} has the model {stored.model} ({stored.model_digest}), not {model}: "
            "a queue has one model. Name another --queue, or start this worker with --replace-model: workers "
            "of the other model then take no more jobs"
        )
