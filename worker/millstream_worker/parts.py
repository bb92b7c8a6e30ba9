"""The parts of a worker and what each is given: the one place that knows them all. What they do together, and
in which order they end, is the service's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from millstream.wire.connection import Endpoint
from millstream.wire.heartbeat import Heartbeat
from millstream.wire.keys import ShardKeys
from millstream.wire.timing import ServerClock
from millstream_worker.capacity import Capacity
from millstream_worker.delivery import Pace, Settling, Writer
from millstream_worker.engine_link import EnginePort
from millstream_worker.intake import Admission, Intake, JobBounds, LaneReader, Limits, Reading, Starting
from millstream_worker.leases import Control, Leases
from millstream_worker.metrics import Metrics
from millstream_worker.quarantine import Quarantine
from millstream_worker.settings import Settings
from millstream_worker.supervisor import Listener, Supervisor
from millstream_worker.table import JobTable
from millstream_worker.trouble import Trouble
from millstream_worker.upkeep import Chores, LostEntries, Reclaimer, Upkeep
from millstream_worker.vitals import Vitals


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What more than one part holds."""

    settings: Settings
    name: str
    endpoint: Endpoint
    redis: Any  # for commands
    renewing: Any  # the same server, on a connection of its own: waits behind nobody's commands
    table: JobTable
    engine: EnginePort
    capacity: Capacity
    clock: ServerClock
    metrics: Metrics
    vitals: Vitals
    outage: Trouble  # of the server


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """Whom the parts tell, or ask."""

    listener: Callable[[Settling], Listener]
    heartbeat: Callable[[], Heartbeat]
    keep_metadata: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    settling: Settling
    writer: Writer
    leases: Leases
    chores: Chores
    upkeep: Upkeep
    control: Control
    admission: Admission
    reading: Reading
    readers: Sequence[Redis]  # one blocking connection for each intake
    intakes: Sequence[Intake]
    supervisor: Supervisor
    quarantine: Quarantine


def assemble(shared: Shared, shards: Sequence[ShardKeys], told: Told) -> Parts:
    """Nothing runs yet, and nothing is connected."""
    settings, redis, name = shared.settings, shared.redis, shared.name
    table, metrics, watch = shared.table, shared.metrics, shared.vitals.watch
    settling = Settling(table, shared.clock, metrics, max_result_bytes=settings.max_result_bytes)
    reclaimer = Reclaimer(
        redis, name, metrics, lease_s=settings.lease_s, renew_s=settings.renew_s, outage=shared.outage
    )
    lost = LostEntries(redis, shards, shared.clock.now_ms, result_ttl_ms=_result_ttl_ms(settings))
    chores = Chores(
        redis,
        shards,
        reclaimer,
        lost,
        shared.clock,
        metrics,
        told.heartbeat,
        told.keep_metadata,
        result_ttl_ms=_result_ttl_ms(settings),
    )
    upkeep = Upkeep(chores.schedule(settings.renew_s), watch("upkeep"), shared.outage)
    admission = _admission(shared)
    starting = Starting(redis, name, table, shared.engine, admission, outage=shared.outage)
    readers = [shared.endpoint.blocking(name, block_s=settings.block_s) for _ in shards]
    supervisor = _supervisor(shared, told.listener(settling))
    return Parts(
        settling=settling,
        writer=_writer(shared),
        leases=Leases(
            shared.renewing,
            name,
            table,
            metrics,
            settings.renew_s,
            watch("renewal", settings.renew_s),
            shared.outage,
        ),
        chores=chores,
        upkeep=upkeep,
        control=Control(shared.endpoint, name, shards, table, lambda: upkeep.wake("scan"), lost.asked),
        admission=admission,
        reading=Reading(
            redis, table, shared.capacity, watch("reading"), read=admission.read, outage=shared.outage
        ),
        readers=readers,
        intakes=[
            _intake(shared, starting, reclaimer, reader, shard, len(shards))
            for reader, shard in zip(readers, shards, strict=True)
        ],
        supervisor=supervisor,
        quarantine=Quarantine(
            redis,
            name,
            table,
            metrics,
            watch("quarantine"),
            try_prove=supervisor.try_prove,
            read=admission.read,
        ),
    )


def _result_ttl_ms(settings: Settings) -> int:
    return int(settings.result_ttl_s * 1000)


def _writer(shared: Shared) -> Writer:
    settings = shared.settings
    return Writer(
        shared.redis,
        shared.name,
        shared.table,
        shared.clock,
        shared.metrics,
        Pace(settings.flush_ms / 1000, settings.log_flush_s, _result_ttl_ms(settings), settings.max_dead),
        shared.vitals.watch("writer"),
        log_payloads=settings.log_payloads,
        outage=shared.outage,
    )


def _admission(shared: Shared) -> Admission:
    settings = shared.settings
    return Admission(
        shared.table,
        shared.capacity,
        Limits(settings.max_attempts, settings.max_died, settings.max_died_alone),
        JobBounds(settings.max_prompt_tokens, settings.max_output_tokens, settings.max_result_bytes),
        log_payloads=settings.log_payloads,
    )


def _intake(
    shared: Shared, starting: Starting, reclaimer: Reclaimer, reader: Redis, shard: ShardKeys, shards: int
) -> Intake:
    settings = shared.settings
    lanes = LaneReader(
        reader,
        shard,
        shared.name,
        shared.table.entries,
        block_s=settings.block_s,
        look_s=settings.renew_s,
        max_dead=settings.max_dead,
        outage=shared.outage,
    )
    return Intake(
        lanes,
        starting,
        shared.capacity,
        shared.table,
        reclaimer,
        shards=shards,
        burst=settings.burst,
        vital=shared.vitals.watch("read", settings.block_s),
    )


def _supervisor(shared: Shared, listener: Listener) -> Supervisor:
    settings = shared.settings
    return Supervisor(
        settings.engine_argv,
        settings.engine_config(),
        shared.engine,
        shared.table,
        shared.metrics,
        listener,
        shared.vitals.watch("step"),
        max_died=settings.max_died,
        max_died_alone=settings.max_died_alone,
        restarts=settings.engine_restarts,
        progress_timeout_s=settings.progress_timeout_s,
        silence_timeout_s=settings.silence_timeout_s,
    )
