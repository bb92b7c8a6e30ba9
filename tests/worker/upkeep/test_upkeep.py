"""What any worker does for all: one shard in trouble does not keep it from the others."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, ResponseError
from support.servers.servers import BOTH, free_port
from support.wire.desk import WINDOW, Desk
from support.workers.work import SHARD

from millstream.errors import ProtocolError
from millstream.wire import calls
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.messages.job_messages import State
from millstream.wire.messages.record import read_job
from millstream.wire.state.heartbeat import Heartbeat
from millstream.wire.timing import ServerClock
from millstream_worker.observe.metrics import Metrics
from millstream_worker.upkeep.heartbeats import Heartbeats
from millstream_worker.upkeep.lost_entries import LostEntries
from millstream_worker.upkeep.maintenance import Maintenance
from millstream_worker.upkeep.queue_metrics import QueueFigures, waiting_since_ms


@BOTH
async def test_a_long_sweep_leaves_the_other_tasks_their_turn(redis_client: Redis) -> None:
    desk = await Desk(redis_client, QueueKeys("docs").shard(0)).open()
    for number in range(7):
        await desk.submit(f"0-{number}", deadline_ms=1)
    sweep = Maintenance(redis_client, [desk.keys], result_ttl_ms=60_000, limit=2, most_calls=2)
    for left in (3, 0):
        await sweep.expire()
        assert await redis_client.zcard(desk.keys.deadlines) == left


@BOTH
async def test_one_shard_in_trouble(redis_client: Redis) -> None:
    shards = [QueueKeys("docs").shard(number) for number in range(3)]
    desks = [await Desk(redis_client, keys).open() for keys in shards]
    for number in (0, 2):
        await desks[number].submit(f"{number}-late", deadline_ms=1)
    await redis_client.set(shards[1].deadlines, "damaged")
    with pytest.raises(ResponseError):
        await Maintenance(redis_client, shards, result_ttl_ms=60_000).expire()
    for number in (0, 2):
        record = await read_job(redis_client, shards[number], f"{number}-late")
        assert record is not None
        assert record.state is State.EXPIRED


@BOTH
async def test_a_job_that_cannot_be_checked_delays_no_other(redis_client: Redis) -> None:
    """Both have lost their entry; the first one's keys are damaged."""
    desk = await Desk(redis_client, SHARD).open()
    lost = LostEntries(redis_client, [SHARD], lambda: 17, result_ttl_ms=60_000)
    for job_id in ("0-damaged", "0-lost"):
        await desk.submit(job_id)
        lost.asked(SHARD.control, job_id)
    await redis_client.xtrim(SHARD.lane(desk.lane), maxlen=0)
    await redis_client.set(SHARD.job("0-damaged"), "something else")
    await lost.look()
    record = await read_job(redis_client, SHARD, "0-lost")
    assert record is not None
    assert (record.state, record.finished_ms) == (State.FAILED, 17)


async def test_the_figures_of_one_look_are_shown_together(redis_client: Redis) -> None:
    """Whoever reads them while the server is being asked sees those of the look before."""
    registry = CollectorRegistry()
    desk = await Desk(redis_client, QueueKeys("docs").shard(0)).open()
    await desk.submit("0-a")
    seen: list[object] = []

    class Watched:
        """Whoever asks the server for something: what is shown just then."""

        def __getattr__(self, name: str) -> Any:
            seen.append(shown())
            return getattr(redis_client, name)

    figures = QueueFigures(Watched(), [desk.keys], ServerClock(), Metrics(registry))
    beats = Heartbeats(redis_client, [desk.keys], lambda: Heartbeat("w", model="model"), figures, renew_s=1)
    await beats.send()
    await calls.run(redis_client, calls.join(desk.keys, owner="w"))

    def shown() -> tuple[float | None, float | None]:
        labels = {"queue": "default", "lane": "batch"}
        return (
            registry.get_sample_value("millstream_jobs_queued", labels),
            registry.get_sample_value("millstream_workers", {"queue": "default"}),
        )

    before = shown()
    await figures.measure()
    assert set(seen) == {before}
    assert shown() == (1, 1)


async def test_figures_that_cannot_be_read_are_not_shown(redis_client: Redis) -> None:
    """Neither in an outage nor where a key is damaged: those of before would be taken for those of now."""
    registry = CollectorRegistry()
    desk = await Desk(redis_client, SHARD).open()
    metrics = Metrics(registry)
    figures = QueueFigures(redis_client, [SHARD], ServerClock(), metrics)

    def shown() -> tuple[float | None, float | None]:
        labels = {"queue": "default"}
        queued = registry.get_sample_value("millstream_jobs_queued", labels | {"lane": "batch"})
        return registry.get_sample_value("millstream_queue_up", labels), queued

    assert shown() == (0, None)
    await desk.submit("0-a")
    await figures.measure()
    assert shown() == (1, 1)
    _, kept = SHARD.cache
    await redis_client.set(kept, "many")
    with pytest.raises(ProtocolError, match="is damaged: b'many' is no count"):  # upkeep says so, and goes on
        await figures.measure()
    assert shown() == (0, None)
    await redis_client.set(kept, 7)
    await figures.measure()
    assert shown() == (1, 1)
    async with Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as nowhere:
        away = QueueFigures(nowhere, [SHARD], ServerClock(), metrics)
        with pytest.raises(ConnectionError):
            await away.measure()
    assert shown() == (0, None)


@BOTH
async def test_the_oldest_job_is_told_by_its_own_time(redis_client: Redis) -> None:
    """A damaged one hides no other's age, or its worker would count nothing for as long as it waits."""
    desk = await Desk(redis_client).open()
    lane = desk.keys.lane(Lane.BATCH)

    async def since_ms() -> int | None:
        return await waiting_since_ms(redis_client, desk.keys, Lane.BATCH)

    assert await since_ms() is None
    await desk.fill_window()
    await desk.park()
    await redis_client.hset(desk.keys.job("0-a"), "submitted_ms", 5)
    assert await since_ms() == 5
    await desk.take(WINDOW)
    await desk.promote()  # its entry is of now
    assert await since_ms() == 5
    await desk.take()
    assert await since_ms() is None
    strange = await redis_client.xadd(lane, {"what": "is this"})
    assert await since_ms() == int(strange.partition(b"-")[0])
    await redis_client.xdel(lane, strange)
    await redis_client.set(desk.keys.job("0-damaged"), "no hash")
    await redis_client.hset(desk.keys.job("0-strange"), "submitted_ms", "long ago")
    for job_id in ("0-damaged", "0-strange"):
        entry = await redis_client.xadd(lane, {"id": job_id, "v": "1", "b": b""})
        assert await since_ms() == int(entry.partition(b"-")[0])
        await redis_client.xdel(lane, entry)
    desk = await Desk(redis_client, SHARD).open()
    await desk.fill_window()
    await desk.park()
    await redis_client.hset(desk.keys.job("0-a"), "submitted_ms", 5)
    await redis_client.set(desk.keys.job("0-window-0"), "no hash")
    assert await since_ms() == 5
