"""Builds a worker's components and connects them. The only place that knows all of them; `QueueSession` runs
and ends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis.asyncio import Redis

from millstream.wire.connection import Endpoint
from millstream.wire.keys import ShardKeys
from millstream.wire.state.queue_info import QueueInfo
from millstream.wire.timing import ServerClock
from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.delivery.reply_handler import ReplyHandler
from millstream_worker.delivery.write_builder import FlushPolicy, WriteBuilder
from millstream_worker.delivery.writer import Writer
from millstream_worker.engine_link.death_charges import Blame
from millstream_worker.engine_link.link import EnginePort
from millstream_worker.engine_link.quarantine import Quarantine
from millstream_worker.engine_link.supervisor import EngineLaunch, EngineLimits, Supervisor
from millstream_worker.images.pool import ImagePool, PoolLimits
from millstream_worker.intake.admission import Admission
from millstream_worker.intake.cached_results import CachedResults
from millstream_worker.intake.capacity import Capacity
from millstream_worker.intake.job_preparer import JobPreparer
from millstream_worker.intake.job_starter import JobStarter
from millstream_worker.intake.lanes import LaneReader
from millstream_worker.intake.long_job_reader import LongJobReader
from millstream_worker.intake.loop import Intake, ShardSource
from millstream_worker.intake.message_fetch import MessageFetch
from millstream_worker.intake.pictures.pictures import Pictures
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job_records import AttemptLimits
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.leases.control import Control
from millstream_worker.leases.renewal import Leases
from millstream_worker.observe.health import Health
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch, Watchdog
from millstream_worker.service.engine_events import EngineEvents
from millstream_worker.service.image_reader import ImageReader
from millstream_worker.service.queue_model import QueueModel
from millstream_worker.service.report import Report
from millstream_worker.service.stop_signal import StopSignal
from millstream_worker.settings import Settings
from millstream_worker.upkeep.heartbeats import Heartbeats
from millstream_worker.upkeep.lost_entries import LostEntries
from millstream_worker.upkeep.maintenance import Maintenance
from millstream_worker.upkeep.periodic_tasks import PeriodicTask, Upkeep, on_all
from millstream_worker.upkeep.queue_metrics import QueueFigures
from millstream_worker.upkeep.reclaim import Reclaimer


@dataclass(frozen=True, slots=True, eq=False)
class Resources:
    """Shared by the components of a worker."""

    settings: Settings
    endpoint: Endpoint
    consumer: Consumer  # for all commands but renewals
    renewing: Consumer  # on a connection of its own: renewals wait behind no other command
    clock: ServerClock
    metrics: Metrics
    watchdog: Watchdog
    loop_watch: LoopWatch
    health: Health
    replace_model: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Components:
    table: JobTable
    queue: EngineQueue
    model: QueueModel
    engine: EnginePort
    supervisor: Supervisor
    quarantine: Quarantine
    readers: Sequence[Redis]  # one blocking connection for each intake
    intakes: Sequence[Intake]
    reading: LongJobReader
    pictures: Pictures
    pool: ImagePool
    lookup: CachedResults
    writer: Writer
    leases: Leases
    control: Control
    heartbeats: Heartbeats
    upkeep: Upkeep
    report: Report


def assemble(resources: Resources, info: QueueInfo, stop: StopSignal) -> Components:
    """Build all components. Nothing runs yet, and nothing is connected."""
    settings, consumer = resources.settings, resources.consumer
    metrics, clock, watch = resources.metrics, resources.clock, resources.watchdog.watch
    shards = info.shard_keys(settings.queue)
    limits = AttemptLimits(settings.max_attempts, settings.max_died, settings.max_died_alone)
    # the held jobs, and the engine
    engine, model = EnginePort(), ModelSlot(reads_defaults=settings.generation_config == "auto")
    queue = EngineQueue(engine)
    queue.images.salted = settings.prefix_scope == "tenant"
    pool = _image_pool(settings, metrics)
    model.read_images = ImageReader(pool, settings.image_processes).read
    table = JobTable(queue)
    capacity = Capacity(table, queue, model, lookahead=settings.lookahead, shards=len(shards))
    net = Net(metrics)
    output = OutputProcessor(table, queue, clock, net, model, max_result_bytes=settings.max_result_bytes)
    blame = Blame(table, queue, limits)
    step_watch = watch("step")
    queue_model = QueueModel(
        consumer, settings.queue, info, stop, step_watch, replace=resources.replace_model
    )
    events = EngineEvents(model, queue_model, output, capacity, metrics, blame)
    launch = EngineLaunch(settings.engine_argv, settings.engine_config())
    supervisor = Supervisor(launch, engine, queue, events, step_watch, _engine_limits(settings))

    def refused() -> None:
        queue_model.refuse()
        upkeep.wake("metadata")

    # intake: from the lanes to prepared jobs
    bounds = JobBounds(settings.max_prompt_tokens, settings.max_output_tokens, settings.max_result_bytes)
    preparer = JobPreparer(model, capacity, bounds, net, keeps=bool(settings.result_cache))
    lookup = CachedResults(consumer, table, queue, clock, net, watch("lookup", 1.0))
    admission = Admission(table, queue, preparer, limits, lookup, log_payloads=settings.log_payloads)
    fetch = MessageFetch(consumer, table)
    pictures = Pictures(
        table, queue, model, fetch, net, watch("pictures", 3 * settings.image_timeout_s),
        prepare=pool.prepare, complete=admission.read_with_images, at_once=lambda: pool.size,
        most_at_once=max(8, settings.image_processes),
    )  # fmt: skip
    reading = LongJobReader(
        fetch, table, queue, capacity, watch("reading"),
        read=admission.read, takes_images=lambda: pictures.takes_more,
    )  # fmt: skip
    starting = JobStarter(consumer, table, queue, admission, model, refused)
    reclaimer = Reclaimer(consumer, metrics, lease_s=settings.lease_s, renew_s=settings.renew_s)
    readers = [resources.endpoint.blocking(consumer.name, block_s=settings.block_s) for _ in shards]
    sources = [
        ShardSource(_lane_reader(resources, table, reader, shard), reclaimer)
        for reader, shard in zip(readers, shards, strict=True)
    ]
    intakes = [
        Intake(source, starting, capacity, table, watch("read", settings.block_s), burst=settings.burst)
        for source in sources
    ]
    # delivery: from steps to the log and the result
    reply_handler = ReplyHandler(table, metrics, log_payloads=settings.log_payloads)
    builder = WriteBuilder(consumer.name, clock, model, _flush_policy(settings))
    # leases and upkeep
    report = Report(consumer.name, capacity, engine, model, clock.now_ms())
    report.keeps_results = bool(settings.result_cache)
    lost = LostEntries(consumer.redis, shards, clock.now_ms, result_ttl_ms=_result_ttl_ms(settings))
    figures = QueueFigures(consumer.redis, shards, clock, metrics)
    heartbeats = Heartbeats(consumer.redis, shards, report.heartbeat, figures, settings.renew_s)
    tasks = [
        PeriodicTask("heartbeat", settings.renew_s, heartbeats.send),
        PeriodicTask("metadata", settings.renew_s, queue_model.keep),
        *_maintenance(resources, shards),
        PeriodicTask("lost entries", min(1.0, settings.renew_s), lost.look),
        PeriodicTask("scan", settings.renew_s, lambda: on_all(shards, reclaimer.scan)),
        PeriodicTask("queue", min(5.0, settings.renew_s), figures.measure),
        PeriodicTask("clock", 60.0, lambda: clock.sync(consumer.redis)),
    ]
    upkeep = Upkeep(tasks, watch("upkeep"), consumer.outage)
    model.changed = lambda: upkeep.wake("heartbeat")
    renewal = watch("renewal", settings.renew_s)
    return Components(
        table=table,
        queue=queue,
        model=queue_model,
        engine=engine,
        supervisor=supervisor,
        quarantine=Quarantine(consumer, table, queue, metrics, watch("quarantine"), read=admission.read),
        readers=readers,
        intakes=intakes,
        reading=reading,
        pictures=pictures,
        pool=pool,
        lookup=lookup,
        writer=Writer(consumer, table, clock, builder, reply_handler, watch("writer")),
        leases=Leases(resources.renewing, table, metrics, settings.renew_s, renewal),
        control=Control(
            resources.endpoint, consumer.name, shards, table, lambda: upkeep.wake("scan"), lost.asked
        ),
        heartbeats=heartbeats,
        upkeep=upkeep,
        report=report,
    )


def _image_pool(settings: Settings, metrics: Metrics) -> ImagePool:
    limits = PoolLimits(settings.image_timeout_s, settings.max_image_pixels)
    return ImagePool(limits, settings.image_options, died=metrics.image_deaths.inc)


def _engine_limits(settings: Settings) -> EngineLimits:
    return EngineLimits(settings.engine_restarts, settings.progress_timeout_s, settings.silence_timeout_s)


def _flush_policy(settings: Settings) -> FlushPolicy:
    return FlushPolicy(
        settings.flush_ms / 1000,
        settings.log_flush_s,
        _result_ttl_ms(settings),
        settings.max_dead,
        settings.result_cache,
    )


def _result_ttl_ms(settings: Settings) -> int:
    return int(settings.result_ttl_s * 1000)


def _lane_reader(resources: Resources, table: JobTable, reader: Redis, shard: ShardKeys) -> LaneReader:
    settings = resources.settings
    consumer = replace(resources.consumer, redis=reader)
    return LaneReader(
        consumer,
        shard,
        table.entries,
        block_s=settings.block_s,
        look_s=settings.renew_s,
        max_dead=settings.max_dead,
    )


def _maintenance(resources: Resources, shards: Sequence[ShardKeys]) -> list[PeriodicTask]:
    settings, redis = resources.settings, resources.consumer.redis
    maintenance = Maintenance(redis, shards, result_ttl_ms=_result_ttl_ms(settings))
    return [
        PeriodicTask("promote", min(0.5, settings.renew_s), maintenance.promote),
        PeriodicTask("expire", min(1.0, settings.renew_s), maintenance.expire),
        PeriodicTask("consumers", 60.0, maintenance.drop_consumers),
    ]
