"""One worker: makes its parts, runs them in one task group, and ends them in the one right order.

SIGTERM once: no new work, running jobs get the grace period. Twice: everything is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Coroutine, Sequence
from secrets import token_hex

import structlog
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.wire.connection import Endpoint
from millstream.wire.heartbeat import Heartbeat
from millstream.wire.keys import ShardKeys
from millstream.wire.queue_info import open_queue
from millstream_worker.capacity import Capacity
from millstream_worker.clock import ServerClock
from millstream_worker.delivery import Pace, Settling, Writer, hand_back
from millstream_worker.engine.config import EngineInfo
from millstream_worker.engine.frames import Step
from millstream_worker.engine_link import EnginePort
from millstream_worker.health import Health, HealthServer
from millstream_worker.intake import Admission, Intake, LaneReader, Limits, create_groups
from millstream_worker.leases import Control, Leases
from millstream_worker.metrics import Metrics
from millstream_worker.server_check import warn_of_server_settings
from millstream_worker.settings import Settings
from millstream_worker.supervisor import Listener, Supervisor, Unusable
from millstream_worker.table import JobTable
from millstream_worker.text import TextModel, TokenizerUnusable
from millstream_worker.upkeep import Chores, Reclaimer, Upkeep

_log = structlog.get_logger(__name__)
_ENGINE_STOP_S = 5.0
_PULSE_S = 1.0
_LONGEST_PAUSE_S = 5.0


class CannotServe(Exception):
    """The worker has to end; the message says why and what to do."""


class Service:
    """`run` once; `drain` from a signal handler, on the loop."""

    def __init__(self, settings: Settings, registry: CollectorRegistry | None = None) -> None:
        self._settings = settings
        self.name = f"{settings.name or socket.gethostname()}-{token_hex(4)}"
        self.health = Health()
        self._registry = registry or CollectorRegistry()
        self._metrics = Metrics(self._registry)
        self._clock = ServerClock()
        self._engine = EnginePort()
        self._table = JobTable(self._engine)
        self._capacity = Capacity(self._table, self._engine, settings.lookahead)
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._model = ""

    def drain(self) -> None:
        """Stop taking work, end when the running jobs are done. A second time: give them back, end now."""
        if self._ending.is_set():
            self._hurry.set()
            self._table.changed.set()
        self._ending.set()

    async def run(self) -> None:
        """Serve until drained. Raises CannotServe where the queue or the model cannot be used."""
        settings = self._settings
        try:
            self._endpoint = Endpoint.of(settings.redis_url)
        except InvalidRequest as error:
            raise CannotServe(str(error)) from error
        self.health.touch()
        server = self._serve_health()
        self._redis = self._endpoint.commands(self.name)
        self._readers: list[Redis] = []
        try:
            shards = await self._open_queue()
            if shards:
                await self._serve(shards)
        finally:
            if server is not None:
                server.close()
            for client in (*self._readers, self._redis):
                await client.aclose()

    def _serve_health(self) -> HealthServer | None:
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if not port:
            return None
        try:
            return HealthServer(host, port, self._registry, self.health)
        except (OSError, OverflowError) as error:
            message = f"metrics_port {port} of {host}: {error}; choose another, or 0 for none"
            raise CannotServe(message) from error

    async def _open_queue(self) -> list[ShardKeys]:
        """The queue's shards, as soon as the server is there; none where the worker is drained before."""
        pause = 0.1
        while not self._ending.is_set():
            try:
                await self._clock.sync(self._redis)
                info = await open_queue(self._redis, self._settings.queue, shards=self._settings.shards)
                await warn_of_server_settings(self._redis)
                keys = info.keys(self._settings.queue)
                shards = [keys.shard(shard) for shard in range(info.shards)]
                for shard in shards:
                    await create_groups(self._redis, shard)
                return shards
            except (QueueMismatch, ProtocolError) as error:
                raise CannotServe(str(error)) from error
            except (RedisError, OSError) as error:
                self.health.problem = f"Redis at {self._endpoint}: {error}"
                _log.warning("queue cannot be opened yet", server=str(self._endpoint), error=str(error))
                self.health.touch()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause * random.uniform(0.5, 1.5)):
                        await self._ending.wait()
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        return []

    async def _serve(self, shards: Sequence[ShardKeys]) -> None:
        self._make_parts(shards)
        async with asyncio.TaskGroup() as group:
            supervising = group.create_task(self._supervisor.run(), name="supervisor")
            writing = group.create_task(self._writer.run(), name="writer")
            taking = [group.create_task(intake.run(), name="intake") for intake in self._intakes]
            group.create_task(self._leases.run(), name="leases")
            group.create_task(self._control.run(), name="control")
            keeping = group.create_task(self._upkeep.run(), name="upkeep")
            watching = [group.create_task(watch) for watch in self._watches()]
            try:
                await self._ending.wait()
                await self._end(taking, writing, keeping)
                await self._supervisor.stop(_ENGINE_STOP_S)  # 6 nobody waits for its tokens any more
                await supervising
            finally:  # also after an error: none of these ends by being cancelled alone
                for task in watching:
                    task.cancel()
                await self._stop_all()
        if self._supervisor.failed.is_set():
            raise CannotServe(self._supervisor.failure)
        _log.info("ended")

    async def _end(
        self,
        taking: Sequence[asyncio.Task[None]],
        writing: asyncio.Task[None],
        keeping: asyncio.Task[None],
    ) -> None:
        self.health.problem = "draining"
        _log.info("draining")
        for intake in self._intakes:
            intake.stop()
        await asyncio.wait(taking)  # 1 no new work
        await self._finish_running()  # 2 leases are still renewed here
        self._writer.stop()
        await writing
        await self._writer.write_all()  # 3 what readers do not have yet
        await self._hand_back()  # 4 others go on with the rest
        self._leases.stop()  # 5 only now let the leases and the heartbeat go
        self._upkeep.stop()
        await keeping  # a beat that is under way would come after the last word
        await self._stop_beating()

    async def _stop_all(self) -> None:
        for intake in self._intakes:
            intake.stop()
        self._writer.stop()
        self._leases.stop()
        self._upkeep.stop()
        await self._control.stop()

    def _watches(self) -> list[Coroutine[None, None, None]]:
        watches = [self._pulse(), self._end_on_failure()]
        return [*watches, self._end_when_empty()] if self._settings.burst else watches

    def _make_parts(self, shards: Sequence[ShardKeys]) -> None:
        settings, redis, name, table = self._settings, self._redis, self.name, self._table
        ttl_ms = int(settings.result_ttl_s * 1000)
        pace = Pace(settings.flush_ms / 1000, settings.log_flush_s, ttl_ms, settings.max_dead)
        self._settling = Settling(table, self._clock, self._metrics)
        self._writer = Writer(redis, name, table, self._clock, self._metrics, pace)
        self._leases = Leases(redis, name, table, self._metrics, settings.renew_s)
        reclaimer = Reclaimer(redis, name, self._metrics, lease_s=settings.lease_s, renew_s=settings.renew_s)
        self._chores = Chores(
            redis, shards, reclaimer, self._clock, self._metrics, self._heartbeat, result_ttl_ms=ttl_ms
        )
        self._upkeep = Upkeep(self._chores.schedule(settings.renew_s))
        self._control = Control(self._endpoint, name, shards, table, lambda: self._upkeep.wake("scan"))
        self._admission = Admission(
            redis,
            name,
            table,
            self._engine,
            self._capacity,
            Limits(settings.max_attempts, settings.max_died),
            log_payloads=settings.log_payloads,
        )
        self._readers = [self._endpoint.blocking(name, block_s=settings.block_s) for _ in shards]
        self._intakes = [
            self._make_intake(reader, shard, reclaimer)
            for reader, shard in zip(self._readers, shards, strict=True)
        ]
        self._supervisor = self._make_supervisor()

    def _make_intake(self, reader: Redis, shard: ShardKeys, reclaimer: Reclaimer) -> Intake:
        settings, table = self._settings, self._table
        lanes = LaneReader(
            reader,
            shard,
            self.name,
            table.entries,
            block_s=settings.block_s,
            look_s=settings.renew_s,
            max_dead=settings.max_dead,
        )
        return Intake(
            lanes,
            self._admission,
            self._capacity,
            table,
            reclaimer,
            shards=len(self._readers),
            burst=settings.burst,
        )

    def _make_supervisor(self) -> Supervisor:
        settings = self._settings
        return Supervisor(
            settings.engine_argv,
            settings.engine_config(),
            self._engine,
            self._table,
            self._metrics,
            Listener(self._engine_ready, self._engine_stepped, self._settling.refused),
            max_died=settings.max_died,
            restarts=settings.engine_restarts,
            step_timeout_s=settings.step_timeout_s,
            silence_timeout_s=settings.silence_timeout_s,
        )

    async def _engine_ready(self, info: EngineInfo) -> None:
        try:
            text = await asyncio.to_thread(TextModel.load, info.tokenizer, info.vocab_size)
        except TokenizerUnusable as error:
            raise Unusable(str(error)) from error
        self._model = self._writer.model = info.model
        self._settling.text = text
        self._admission.ready(text, info)
        self._capacity.reset(info)
        if not self._ending.is_set():
            self.health.problem = self._upkeep.trouble

    def _engine_stepped(self, step: Step) -> None:
        self._settling.step(step)
        self._metrics.settled(step.stats)
        self._capacity.update(step.stats)

    def _heartbeat(self) -> Heartbeat:
        stats = self._capacity.stats
        return Heartbeat(
            self.name,
            self._model,
            token_capacity=self._capacity.token_capacity,
            max_rows=self._settings.max_rows,
            rows_running=stats.rows_running,
            rows_waiting=stats.rows_waiting,
        )

    async def _finish_running(self) -> None:
        if len(self._table):
            _log.info("finishing running jobs", jobs=len(self._table), grace_s=self._settings.grace_s)
        try:
            async with asyncio.timeout(self._settings.grace_s):
                while len(self._table) and not self._hurry.is_set() and not self._supervisor.failed.is_set():
                    self._table.changed.clear()
                    await self._table.changed.wait()
        except TimeoutError:
            _log.warning("grace period over", jobs=len(self._table))

    async def _hand_back(self) -> None:
        failed = self._supervisor.failed.is_set()
        retry_ms = int(self._settings.retry_backoff_s * 1000) if failed else None
        if len(self._table):
            _log.info("giving jobs back", jobs=len(self._table))
            await hand_back(self._redis, self.name, self._table, self._metrics, retry_ms=retry_ms)

    async def _stop_beating(self) -> None:
        try:
            await self._chores.stop_beating()
        except (RedisError, OSError):
            return  # it runs out by itself

    async def _pulse(self) -> None:
        while True:
            self.health.touch()
            self._metrics.jobs_held.set(len(self._table))
            if not self._ending.is_set():
                self.health.problem = self._upkeep.trouble if self._engine.up else "no engine is ready"
            await asyncio.sleep(_PULSE_S)

    async def _end_on_failure(self) -> None:
        await self._supervisor.failed.wait()
        self._ending.set()
        self._table.changed.set()

    async def _end_when_empty(self) -> None:
        for intake in self._intakes:
            await intake.empty.wait()
        self._ending.set()
