"""The one model of the queue. A worker of another one is refused before it loads, or replaces the model where
that is asked for; a worker whose model was replaced takes no more jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass

import structlog
from redis.exceptions import RedisError

from millstream.errors import ProtocolError, QueueMismatch
from millstream.wire import calls
from millstream.wire.keys import QueueKeys
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


@dataclass(slots=True, eq=False)
class QueueModel:
    """`replaced`: the reason why this worker takes no more jobs; empty while the queue has its model.
    `watch`: of the loop that waits in `check` and `record`. `replace`: where the queue has another model.
    """

    consumer: Consumer
    queue: str
    info: QueueInfo
    stop: StopSignal
    watch: LoopWatch
    _: KW_ONLY
    replace: bool
    replaced: str = ""
    _digest: str = ""  # recorded for this worker; empty again once it was replaced
    _refused: bool = False  # a shard has refused a start since `keep` last looked

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
            call = record_worker(QueueKeys(self.queue), TAKEN, model=self.info.model, model_digest=digest)
            stored = await calls.run(self.consumer.redis, call)
        if ModelIdentity(self.info.model, digest).is_other(stored.served):
            self._give_way(stored)
        elif refused:
            await self._serve()

    def _give_way(self, stored: QueueInfo) -> None:
        self.info, self._digest = stored, ""  # from now on it is the other's
        _log.warning("model replaced", queue=self.queue, model=stored.model)
        if not self.stop.limited.is_set():  # else it is asked to end anyway
            self.replaced = (
                f"queue {self.queue!r} now has another model, {stored.model}: this worker takes no more of "
                "its jobs"
            )
        self.stop.asked.set()

    async def _check(self, model: str, digest: str) -> None:
        stored = await self._open()
        if not self.replace and ModelIdentity(model, digest).is_other(stored.served):
            raise self._unusable(stored, model)

    async def _record(self, info: EngineInfo) -> None:
        await self._open()
        call = record_worker(
            QueueKeys(self.queue),
            TAKEN,
            model=info.model,
            model_digest=info.digest,
            replace=self.replace,
        )
        stored = await calls.run(self.consumer.redis, call)
        if ModelIdentity(info.model, info.digest).is_other(stored.served):
            raise self._unusable(stored, info.model)
        self.info, self._digest = stored, info.digest
        self.replace = False  # once: it may be replaced itself before its engine starts again
        if info.digest:
            await self._serve()

    async def _open(self) -> QueueInfo:
        info = self.info
        return await open_queue(
            self.consumer.redis,
            self.queue,
            shards=info.shards,
            pubsub=info.pubsub,
            takes=TAKEN,
            known=info,
        )

    async def _serve(self) -> None:
        served = [serve_model(shard, self._digest) for shard in self.info.shard_keys(self.queue)]
        for reply in await calls.run_many(self.consumer.redis, served):
            if isinstance(reply, Exception):
                raise reply

    async def _reach(self, doing: str, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step while the server does not answer, until the worker is stopped."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self.stop.asked.is_set():
            self.watch.turn()
            try:
                await step()
                return
            except (QueueMismatch, ProtocolError) as error:
                raise Unusable(str(error)) from error
            except (RedisError, OSError) as error:
                if (refused := refusal(error)) is not None:
                    raise Unusable(refused) from error
                self.consumer.outage.failed(doing=doing, error=str(error))
            await within(self.stop.asked, backoff.next_s())

    def _unusable(self, stored: QueueInfo, model: str) -> Unusable:
        return Unusable(
            f"queue {self.queue!r} has the model {stored.model} ({stored.model_digest}), not {model}: "
            "a queue has one model. Name another --queue, or start this worker with --replace-model: workers "
            "of the other model then take no more jobs"
        )
