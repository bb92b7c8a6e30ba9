"""Builds a worker's components and connects them. The only place that knows all of them; `QueueSession` runs
and ends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis

from millstream.wire.connection import Endpoint
from millstream.wire.keys import ShardKeys
from millstream.wire.queue_info import QueueInfo, open_queue
from millstream.wire.timing import ServerClock
from millstream.wire.versions import TAKEN
from millstream_worker.capacity import Capacity
from millstream_worker.delivery import Pace, Settling, Writer
from millstream_worker.engine_events import EngineEvents
from millstream_worker.engine_link import EnginePort
from millstream_worker.engine_queue import EngineQueue
from millstream_worker.health import Health
from millstream_worker.intake import Admission, Intake, JobBounds, LaneReader, Limits, Reading, Starting
from millstream_worker.leases import Control, Leases
from millstream_worker.metrics import Metrics
from millstream_worker.quarantine import Quarantine
from millstream_worker.report import Report
from millstream_worker.served_model import ModelSlot
from millstream_worker.settings import Settings
from millstream_worker.supervisor import Supervisor
from millstream_worker.table import JobTable
from millstream_worker.trouble import Trouble
from millstream_worker.upkeep import Chores, LostEntries, Reclaimer, Upkeep
from millstream_worker.vitals import Vital, Vitals


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """What the components of a worker share."""

    settings: Settings
    name: str  # of the worker
    endpoint: Endpoint
    redis: Any  # for commands
    renewing: Any  # the same server, on a connection of its own: waits behind nobody's commands
    clock: ServerClock
    metrics: Metrics
    vitals: Vitals
    loop_vital: Vital
    health: Health
    outage: Trouble  # of the server


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    table: JobTable
    queue: EngineQueue
    engine: EnginePort
    capacity: Capacity
    report: Report
    writer: Writer
    leases: Leases
    chores: Chores
    upkeep: Upkeep
    control: Control
    reading: Reading
    readers: Sequence[Redis]  # one blocking connection for each intake
    intakes: Sequence[Intake]
    supervisor: Supervisor
    quarantine: Quarantine


def assemble(resources: Resources, info: QueueInfo, on_engine_ready: Callable[[], None]) -> Components:
    """Nothing runs yet, and nothing is connected."""
    settings, redis, name = resources.settings, resources.redis, resources.name
    metrics, watch, outage = resources.metrics, resources.vitals.watch, resources.outage
    shards = shards_of(settings.queue, info)
    engine, model = EnginePort(), ModelSlot()
    queue = EngineQueue(engine)
    table = JobTable(queue)
    capacity = Capacity(table, queue, model, settings.lookahead)
    report = Report(name, capacity, engine, model, resources.clock.now_ms())
    settling = Settling(
        table, queue, resources.clock, metrics, model, max_result_bytes=settings.max_result_bytes
    )
    events = EngineEvents(model, settling, capacity, metrics, on_engine_ready)
    supervisor = _supervisor(resources, engine, table, queue, events)
    reclaimer = Reclaimer(
        redis, name, metrics, lease_s=settings.lease_s, renew_s=settings.renew_s, outage=outage
    )
    lost = LostEntries(redis, shards, resources.clock.now_ms, result_ttl_ms=_result_ttl_ms(settings))
    chores = Chores(
        redis,
        shards,
        reclaimer,
        lost,
        resources.clock,
        metrics,
        report.heartbeat,
        partial(_keep_metadata, redis, settings.queue, info),
        result_ttl_ms=_result_ttl_ms(settings),
    )
    upkeep = Upkeep(chores.schedule(settings.renew_s), watch("upkeep"), outage)
    admission = Admission(
        table,
        queue,
        capacity,
        model,
        Limits(settings.max_attempts, settings.max_died, settings.max_died_alone),
        JobBounds(settings.max_prompt_tokens, settings.max_output_tokens, settings.max_result_bytes),
        log_payloads=settings.log_payloads,
    )
    starting = Starting(redis, name, table, queue, admission, outage=outage)
    readers = [resources.endpoint.blocking(name, block_s=settings.block_s) for _ in shards]
    leases = Leases(
        resources.renewing, name, table, metrics, settings.renew_s, watch("renewal", settings.renew_s), outage
    )

    def intake(reader: Redis, shard: ShardKeys) -> Intake:
        lanes = LaneReader(
            reader,
            shard,
            name,
            table.entries,
            block_s=settings.block_s,
            look_s=settings.renew_s,
            max_dead=settings.max_dead,
            outage=outage,
        )
        return Intake(
            lanes,
            starting,
            capacity,
            table,
            reclaimer,
            shards=len(shards),
            burst=settings.burst,
            vital=watch("read", settings.block_s),
        )

    return Components(
        table=table,
        queue=queue,
        engine=engine,
        capacity=capacity,
        report=report,
        writer=_writer(resources, table, model),
        leases=leases,
        chores=chores,
        upkeep=upkeep,
        control=Control(resources.endpoint, name, shards, table, lambda: upkeep.wake("scan"), lost.asked),
        reading=Reading(redis, table, queue, capacity, watch("reading"), read=admission.read, outage=outage),
        readers=readers,
        intakes=[intake(reader, shard) for reader, shard in zip(readers, shards, strict=True)],
        supervisor=supervisor,
        quarantine=Quarantine(
            redis,
            name,
            table,
            queue,
            metrics,
            watch("quarantine"),
            try_prove=supervisor.try_prove,
            read=admission.read,
        ),
    )


def shards_of(queue: str, info: QueueInfo) -> list[ShardKeys]:
    keys = info.keys(queue)
    return [keys.shard(shard) for shard in range(info.shards)]


async def _keep_metadata(redis: Any, queue: str, info: QueueInfo) -> None:
    """Of a queue that somebody has flushed: a client that finds none would create another one. Raises
    QueueMismatch where one did.
    """
    await open_queue(redis, queue, shards=info.shards, pubsub=info.pubsub, takes=TAKEN, known=info)


def _result_ttl_ms(settings: Settings) -> int:
    return int(settings.result_ttl_s * 1000)


def _writer(resources: Resources, table: JobTable, model: ModelSlot) -> Writer:
    settings = resources.settings
    return Writer(
        resources.redis,
        resources.name,
        table,
        resources.clock,
        resources.metrics,
        model,
        Pace(settings.flush_ms / 1000, settings.log_flush_s, _result_ttl_ms(settings), settings.max_dead),
        resources.vitals.watch("writer"),
        log_payloads=settings.log_payloads,
        outage=resources.outage,
    )


def _supervisor(
    resources: Resources, engine: EnginePort, table: JobTable, queue: EngineQueue, events: EngineEvents
) -> Supervisor:
    settings = resources.settings
    return Supervisor(
        settings.engine_argv,
        settings.engine_config(),
        engine,
        table,
        queue,
        resources.metrics,
        events,
        resources.vitals.watch("step"),
        max_died=settings.max_died,
        max_died_alone=settings.max_died_alone,
        restarts=settings.engine_restarts,
        progress_timeout_s=settings.progress_timeout_s,
        silence_timeout_s=settings.silence_timeout_s,
    )
