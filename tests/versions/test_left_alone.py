"""Jobs of a version that a worker does not take: it leaves them alone, once, uncharged, and says so where
they wait in vain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import structlog
from prometheus_client import CollectorRegistry
from support.servers.servers import Server
from support.wire.desk import Desk
from support.workers.counting_worker import counted, model_name, serving, until

from millstream import AsyncClient
from millstream.wire import calls
from millstream.wire.keys import GROUP, RELEASED, Lane, QueueKeys
from millstream.wire.messages import codec
from millstream.wire.messages.job_messages import Request
from millstream.wire.messages.record import read_job
from millstream.wire.messages.script_replies import LaneEntry
from millstream.wire.state.heartbeat import Heartbeat, beat
from millstream.wire.versions import TAKEN, WIRE_VERSION
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.metrics import Metrics
from millstream_worker.upkeep.reclaim import Reclaimer

SHARD = QueueKeys("default").shard(0)
LATER = WIRE_VERSION + 1
WAIT = "jobs of other versions wait for a worker that takes them; start one, or cancel them"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Scanner:
    """An idle worker's search for entries that nobody keeps, on a clock of its own."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.clock = Clock()
        self.registry = CollectorRegistry()
        consumer = Consumer(desk.redis, "scanner")
        self.reclaimer = Reclaimer(
            consumer, Metrics(self.registry), lease_s=1, renew_s=10, monotonic=self.clock
        )

    async def leave(self, *job_ids: str, lane: Lane = Lane.BATCH) -> None:
        """What the worker's intake does with jobs of a later version that it has read."""
        self.desk.lane = lane
        await calls.run_many(
            self.desk.redis,
            [self.desk.submitting(one, version=LATER, max_entries=10**6, max_bytes=10**6) for one in job_ids],
        )
        await self.give_back(await self.desk.take(10**6, max_bytes=10**9, owner="scanner"))

    async def give_back(self, entries: Sequence[LaneEntry]) -> None:
        release: list[calls.ScriptCall[Any]] = [
            calls.release(self.desk.keys, one.claim("scanner"), lane=one.lane) for one in entries
        ]
        await calls.run_many(self.desk.redis, release)
        self.reclaimer.ignore(self.desk.keys, entries)

    async def taken(self) -> list[str]:
        """Job ids that a scan, ten seconds later, lets the worker take."""
        self.clock.now += 10.1
        await self.reclaimer.scan(self.desk.keys)
        return [entry.job_id for entry in await self.reclaimer.take(self.desk.keys, 50)]

    @property
    def waiting(self) -> float | None:
        return self.registry.get_sample_value("millstream_jobs_of_other_versions", {"queue": "default"})


@pytest.fixture
def scanner(desk: Desk) -> Scanner:
    return Scanner(desk)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_however_many_are_left_none_is_taken_again(scanner: Scanner) -> None:
    await scanner.leave(*(f"0-{number}" for number in range(10_500)))
    for _ in range(4):
        assert await scanner.taken() == []
    assert scanner.waiting == 10_500
    assert set((await scanner.desk.holders()).values()) == {RELEASED}


async def test_what_was_cancelled_meanwhile_is_dropped(scanner: Scanner) -> None:
    """No worker may ever come that takes it: it must not count against the queue's bound for ever."""
    await scanner.leave("0-a", "0-b")
    assert await scanner.desk.cancel("0-a") == "cancelled"
    for _ in range(3):
        assert await scanner.taken() == []
    assert scanner.waiting == 1
    assert await scanner.desk.cancel("0-b") == "cancelled"
    for _ in range(3):
        assert await scanner.taken() == []
    assert scanner.waiting == 0
    await scanner.desk.audit_idle()


async def test_the_same_entry_of_another_lane_is_taken(scanner: Scanner) -> None:
    await scanner.leave("0-a")
    [entry_id] = await scanner.desk.holders()
    scanner.desk.lane = Lane.INTERACTIVE
    lane = scanner.desk.keys.lane(Lane.INTERACTIVE)
    await scanner.desk.submit("0-b")
    [(twin, fields)] = await scanner.desk.redis.xrange(lane)
    await scanner.desk.redis.xdel(lane, twin)
    await scanner.desk.redis.delete(lane)
    await scanner.desk.redis.xadd(lane, fields, id=entry_id)
    await scanner.desk.redis.hset(scanner.desk.keys.job("0-b"), "entry", entry_id)
    await scanner.desk.redis.xgroup_create(lane, GROUP, "0")
    await scanner.desk.run(scanner.desk.giving_back(await scanner.desk.deliver(), job_id="0-b"))
    assert await scanner.taken() == ["0-b"]


async def test_another_workers_lease_on_one_is_not_waiting(scanner: Scanner) -> None:
    await scanner.leave("0-a", "0-b")
    assert await scanner.taken() == []
    assert scanner.waiting == 2
    [first, second] = sorted(await scanner.desk.holders())
    for entry_id, job_id in ((first, "0-a"), (second, "0-b")):
        await scanner.desk.run(scanner.desk.reclaiming(entry_id, RELEASED, "newer"))
        await scanner.desk.start(entry_id, "newer", job_id=job_id)
    assert await scanner.taken() == []
    assert scanner.waiting == 0


async def test_one_whose_worker_died_is_made_free_again(scanner: Scanner) -> None:
    """Or it would be running for ever, where no other worker takes its version: never cancelled, untold."""
    desk = scanner.desk
    await scanner.leave("0-a")
    assert await scanner.taken() == []
    [entry_id] = await desk.holders()
    await desk.run(desk.reclaiming(entry_id, RELEASED, "newer"))
    await desk.start(entry_id, "newer")
    await desk.redis.xclaim(desk.keys.lane(Lane.BATCH), GROUP, "newer", 0, [entry_id], idle=5000, justid=True)
    assert [await scanner.taken() for _ in range(3)] == [[], [], ["0-a"]]
    await scanner.give_back([LaneEntry("batch", entry_id, "0-a", 4, b"")])
    assert await scanner.taken() == []
    assert scanner.waiting == 1
    job = await desk.job()
    assert (job.state, job.attempt, job.died) == ("queued", 1, 1)
    assert await desk.cancel() == "cancelled"


async def test_jobs_that_wait_in_vain_are_told_of_once_a_minute(scanner: Scanner) -> None:
    with structlog.testing.capture_logs() as lines:
        await scanner.leave("0-a", "0-b")
        for _ in range(5):
            await scanner.taken()
        [line] = lines
        assert (line["event"], line["jobs"], line["versions"]) == (WAIT, 2, [LATER])
        assert line["taken_here"] == str(TAKEN)
        for _ in range(5):
            await scanner.taken()
        assert len(lines) == 2


async def test_jobs_whose_workers_only_have_no_room_are_not_told_of(scanner: Scanner) -> None:
    newer = Heartbeat("newer-1", model="tiny", version_min=1, version_max=LATER)
    await scanner.desk.redis.xgroup_createconsumer(scanner.desk.keys.lanes[0], GROUP, newer.name)
    await scanner.desk.run(beat(scanner.desk.keys, newer, ttl_ms=60_000))
    with structlog.testing.capture_logs() as lines:
        await scanner.leave("0-a")
        await scanner.taken()
        assert lines == []
        await scanner.desk.redis.delete(scanner.desk.keys.worker(newer.name))
        await scanner.taken()
        assert [line["event"] for line in lines] == [WAIT]


@pytest.mark.slow
async def test_each_worker_leaves_it_once(
    server: Server, tokenizer: Path, redis_client: redis.asyncio.Redis
) -> None:
    """Also workers that do nothing else: what one gives back wakes the others."""
    async with redis_client.pubsub() as control:
        await control.subscribe(SHARD.control)
        async with (
            AsyncClient(server.url) as client,
            serving(server, model_name(tokenizer)) as one,
            serving(server, model_name(tokenizer)) as other,
        ):
            payload = codec.encode(Request(prompt="w1"))
            await Desk(redis_client, SHARD).submit("0-newer", version=LATER, payload=payload)
            await until(
                lambda: one.metric("jobs_of_other_versions") == other.metric("jobs_of_other_versions") == 1
            )
            for number in range(40):
                job = await client.submit(f"w{number}", max_tokens=3)
                result = await client.wait(job.id, timeout_s=30)
                assert (result.choices[0].text, result.attempts) == (counted(number + 1, 3), 1)
        released = 0
        while (message := await control.get_message(timeout=0.1)) is not None:
            released += message["data"] == b"released"
        assert released == 2
    record = await read_job(redis_client, SHARD, "0-newer")
    assert record is not None
    assert (record.state, record.attempt, record.died, record.version) == ("queued", 0, 0, LATER)
    [entry] = await calls.scan_pending(redis_client, SHARD, lane="batch", start="-", count=9)
    assert entry.owner == RELEASED
