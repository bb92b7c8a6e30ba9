"""A worker at work on one queue: its parts in one task group, and their end in the one right order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from millstream.wire.keys import ShardKeys
from millstream.wire.queue_info import QueueInfo, open_queue
from millstream.wire.versions import TAKEN
from millstream_worker.delivery import RetryDelay, Settling, hand_back
from millstream_worker.engine.config import EngineInfo
from millstream_worker.engine.outputs import Step
from millstream_worker.health import Health
from millstream_worker.jobs import Job
from millstream_worker.parts import Shared, Told, assemble
from millstream_worker.report import Report
from millstream_worker.supervisor import Listener, Unusable
from millstream_worker.text import TextModel, TokenizerUnusable
from millstream_worker.vitals import Vital

_log = structlog.get_logger(__name__)
_ENGINE_STOP_S = 5.0
_PULSE_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """`asked`: no new work, running jobs get the grace period. `hurried`: give everything back at once."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hurried: asyncio.Event = field(default_factory=asyncio.Event)


class Serving:
    """`failure` tells, when `run` has ended, why there will be no engine any more; empty after a drain."""

    def __init__(
        self, shared: Shared, info: QueueInfo, stop: Stop, health: Health, loop_vital: Vital
    ) -> None:
        self._shared = shared
        self._info = info
        self._stop = stop
        self._health = health
        self._loop_vital = loop_vital
        self._report = Report(shared.name, shared.capacity, shared.engine, shared.clock.now_ms())
        shards = shards_of(shared.settings.queue, info)
        self.parts = assemble(
            shared, shards, Told(self._listener, self._report.heartbeat, self._keep_metadata)
        )

    @property
    def failure(self) -> str:
        return self.parts.supervisor.failure

    async def run(self) -> None:
        """Until the stop is asked for, or there is no point in going on."""
        parts = self.parts
        async with asyncio.TaskGroup() as group:
            supervising = group.create_task(parts.supervisor.run(), name="supervisor")
            writing = group.create_task(parts.writer.run(), name="writer")
            taking = [group.create_task(intake.run(), name="intake") for intake in parts.intakes]
            group.create_task(parts.leases.run(), name="leases")
            reading = group.create_task(parts.reading.run(), name="reading")
            judging = group.create_task(parts.quarantine.run(), name="quarantine")
            group.create_task(parts.control.run(), name="control")
            keeping = group.create_task(parts.upkeep.run(), name="upkeep")
            watching = [group.create_task(watch) for watch in self._watches()]
            try:
                await self._stop.asked.wait()
                await self._end(taking, reading, judging, writing, keeping)
                await parts.supervisor.stop(_ENGINE_STOP_S)  # 7 nobody waits for its tokens any more
                await supervising
            finally:  # also after an error: none of these ends by being cancelled alone
                for task in watching:
                    task.cancel()
                await self._stop_all()

    async def aclose(self) -> None:
        for reader in self.parts.readers:
            await reader.aclose()

    async def _end(
        self,
        taking: Sequence[asyncio.Task[None]],
        reading: asyncio.Task[None],
        judging: asyncio.Task[None],
        writing: asyncio.Task[None],
        keeping: asyncio.Task[None],
    ) -> None:
        self._report.draining = True
        if self.failure:
            self._health.problem = self.failure
        else:
            self._health.problem = "draining"
            _log.info("draining")
        self.parts.upkeep.wake("heartbeat")
        for intake in self.parts.intakes:
            intake.stop()
        self.parts.reading.stop()
        await asyncio.wait([*taking, reading])  # 1 no new work
        await self._hand_back(self._shared.table.put_off)  # 2 others read the long jobs
        await self._finish_running()  # 3 leases are still renewed here
        self.parts.quarantine.stop()
        await asyncio.wait([judging])
        self.parts.writer.stop()
        await writing
        await self.parts.writer.write_all()  # 4 what readers do not have yet
        await self._hand_back(lambda: list(self._shared.table))  # 5 others go on with the rest
        self.parts.leases.stop()  # 6 only now let the leases and the heartbeat go
        self.parts.upkeep.stop()
        await keeping  # a beat that is under way would come after the last word
        await self._stop_beating()

    async def _stop_all(self) -> None:
        for intake in self.parts.intakes:
            intake.stop()
        self.parts.reading.stop()
        self.parts.quarantine.stop()
        self.parts.writer.stop()
        self.parts.leases.stop()
        self.parts.upkeep.stop()
        await self.parts.control.stop()

    def _watches(self) -> list[Coroutine[None, None, None]]:
        watches = [self._pulse(), self._end_on_failure()]
        return [*watches, self._end_when_empty()] if self._shared.settings.burst else watches

    async def _engine_ready(self, info: EngineInfo) -> None:
        try:
            text = await asyncio.to_thread(TextModel.load, info.tokenizer, info.vocab_size)
        except TokenizerUnusable as error:
            raise Unusable(str(error)) from error
        self._report.ready(info)
        self.parts.writer.model = info.model
        self.parts.settling.text = text
        self.parts.admission.ready(text, info)
        self._shared.capacity.reset(info)
        if not self._stop.asked.is_set():
            self._health.problem = self.parts.upkeep.trouble

    def _engine_stepped(self, step: Step) -> None:
        self.parts.settling.step(step)
        self._shared.metrics.settled(step.stats)
        self._shared.capacity.update(step.stats)

    def _engine_gone(self) -> None:
        self._shared.metrics.engine_gone()
        self._shared.capacity.clear()

    def _listener(self, settling: Settling) -> Listener:
        return Listener(self._engine_ready, self._engine_stepped, settling.refused, self._engine_gone)

    async def _keep_metadata(self) -> None:
        """Of a queue that somebody has flushed: a client that finds none would create another one. Raises
        QueueMismatch where one did.
        """
        info, shared = self._info, self._shared
        await open_queue(
            shared.redis,
            shared.settings.queue,
            shards=info.shards,
            pubsub=info.pubsub,
            takes=TAKEN,
            known=info,
        )

    async def _finish_running(self) -> None:
        if len(self._shared.table):
            _log.info(
                "finishing running jobs", jobs=len(self._shared.table), grace_s=self._shared.settings.grace_s
            )
        try:
            async with asyncio.timeout(self._shared.settings.grace_s):
                while (
                    len(self._shared.table)
                    and not self._stop.hurried.is_set()
                    and not self.parts.supervisor.failed.is_set()
                ):
                    self._shared.table.changed.clear()
                    await self._shared.table.changed.wait()
        except TimeoutError:
            _log.warning("grace period over", jobs=len(self._shared.table))

    async def _hand_back(self, left: Callable[[], Sequence[Job]]) -> None:
        settings, supervisor = self._shared.settings, self.parts.supervisor
        delay = RetryDelay(settings.retry_backoff_s, settings.retry_backoff_max_s)
        if jobs := left():
            _log.info("giving jobs back", jobs=len(jobs))
            await hand_back(
                self._shared.redis,
                self._shared.name,
                self._shared.table,
                self._shared.metrics,
                left,
                engine_works=supervisor.works,
                delay=delay if supervisor.failed.is_set() else None,
            )

    async def _stop_beating(self) -> None:
        try:
            await self.parts.chores.stop_beating()
        except (RedisError, OSError):
            return  # it runs out by itself

    async def _pulse(self) -> None:
        while True:
            self._loop_vital.turn()
            self._report.tell()
            self._shared.metrics.jobs_held.set(len(self._shared.table))
            if not self._stop.asked.is_set():
                self._health.problem = (
                    self.parts.upkeep.trouble if self._shared.engine.up else "no engine is ready"
                )
            await asyncio.sleep(_PULSE_S)

    async def _end_on_failure(self) -> None:
        await self.parts.supervisor.failed.wait()
        self._stop.asked.set()
        self._shared.table.changed.set()

    async def _end_when_empty(self) -> None:
        for intake in self.parts.intakes:
            await intake.empty.wait()
        self._stop.asked.set()


def shards_of(queue: str, info: QueueInfo) -> list[ShardKeys]:
    keys = info.keys(queue)
    return [keys.shard(shard) for shard in range(info.shards)]
