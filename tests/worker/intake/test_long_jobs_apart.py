"""How much is taken from the queue beside what waits already; what long jobs that are put off count for, and
in which order they are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Any

import pytest
import structlog
from redis.exceptions import ConnectionError, ResponseError
from support.engine.ready import INFO
from support.workers.jobs import IdleEngine, held_job

from millstream.wire.messages.job_messages import Request, State
from millstream.wire.messages.script_replies import StartReply
from millstream_worker.engine.protocol.config import EngineInfo
from millstream_worker.engine.protocol.outputs import EngineStats
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.intake.capacity import Capacity
from millstream_worker.intake.long_job_reader import LongJobReader
from millstream_worker.intake.message_fetch import MessageFetch
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.watchdog import LoopWatch

UNUSED: Any = None  # nothing is tokenized


class Bench:
    """`reads` has what is being read or was; `go_on` ends one of them."""

    def __init__(self, redis: Any = None) -> None:
        self.queue = EngineQueue(IdleEngine())
        self.table = JobTable(self.queue)
        self.model = ModelSlot()
        self.capacity = Capacity(self.table, self.queue, self.model, lookahead=4)
        self.ready(INFO)
        self.reads: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}
        watch = LoopWatch("reading", inf)
        self.reading = LongJobReader(
            MessageFetch(Consumer(redis, "w"), self.table),
            self.table,
            self.queue,
            self.capacity,
            watch,
            read=self._read,
        )

    def ready(self, info: EngineInfo) -> None:
        self.model.publish(ServedModel(UNUSED, info))
        self.capacity.update(EngineStats(free_rows=info.max_rows, blocks_free=info.blocks))

    def hold(self, name: str, *, payload: bytes = b"x", logged: int = 0) -> Job:
        """A long job that is put off, named after its tenant: `a1` is one of `a`."""
        job = job_named(name, payload)
        job.input.put_off, job.phase = StartReply(True, last_seq=logged), JobPhase.UNREAD
        self.table.take(job)
        return job

    def go_on(self, name: str) -> None:
        self._gates.setdefault(name, asyncio.Event()).set()

    async def _read(self, job: Job) -> None:
        name = job.id.removeprefix("0-")
        self.reads.append(name)
        job.move(JobPhase.READING)
        self.table.changed.notify()
        await self._gates.setdefault(name, asyncio.Event()).wait()
        job.set_read()
        self.table.drop(job)

    async def until(self, condition: Callable[[], bool], *, within_s: float = 10) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - nothing sets an event when nothing happens
                await asyncio.sleep(0)


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    task = asyncio.create_task(bench.reading.run())
    try:
        yield
    finally:
        for job in bench.table:
            bench.go_on(job.id.removeprefix("0-"))
        bench.reading.stop()
        await task


def job_named(name: str, payload: bytes = b"") -> Job:
    return held_job(name, payload, request=Request(token_ids=(0,), tenant=name[0]))


def test_jobs_that_wait_for_their_grammars_keep_no_others_away() -> None:
    """A tenant's flood of formats, compiled one by one, must not leave the batch empty."""
    bench, jobs = Bench(), []
    for number in range(300):
        job = held_job(str(number), prompt=(1,), grammar=GrammarSpec("regex", f"a{number}"))
        job.outputs.rows = [ChoiceOutput(0, UNUSED)]
        bench.table.take(job)
        jobs.append(job)
        if number == 200:
            assert bench.capacity.room() == 7
    assert bench.capacity.room() == 0, "not without a bound"
    for job in jobs[:260]:
        bench.table.drop(job)
    assert bench.capacity.room() == 7
    jobs[-1].set_compiled(1)
    assert bench.capacity.room() == 6
    bench.queue.engine_lost()
    assert bench.capacity.room() == 0, "without an engine that compiles, all of them wait as others do"


def test_predictions_that_wait_fill_the_look_ahead_as_prompts_do() -> None:
    bench, job = Bench(), held_job(prompt=(1,))
    bench.table.take(job)
    assert bench.capacity.room() > 0
    job.input.prediction = tuple(range(INFO.token_capacity))
    assert bench.capacity.room() == 0


async def test_suspects_that_fill_the_pool_let_a_long_job_be_read() -> None:
    """They have their turn after it, and would wait for one that waits for them."""
    bench = Bench()
    suspects = [job_named("s1"), job_named("s2")]
    for job in suspects:
        job.input.prompt = (1,) * INFO.token_capacity
        job.attempt.alone = True
        bench.table.take(job)
    bench.hold("a1")
    assert bench.queue.try_isolate() is None
    async with running(bench):
        await bench.until(lambda: bench.reads == ["a1"])
        bench.go_on("a1")
        await bench.until(lambda: len(bench.table) == 2)
    for job in suspects:
        assert bench.queue.try_isolate() is job
        bench.queue.hand_over_isolated(job)
        bench.table.drop(job)
        bench.queue.end_isolation()


async def test_waiting_long_jobs_take_room_only_if_many_or_logged() -> None:
    bench = Bench()
    free = bench.capacity.room() - 1
    assert free > 0
    bench.hold("l1", logged=1)
    assert bench.capacity.room() == free
    for number in range(256):
        bench.hold(f"a{number}")
    assert bench.capacity.room() == free
    for number in range(free):
        bench.hold(f"b{number}")
    assert bench.capacity.room() == 0


@pytest.mark.parametrize("by", ["step", "end", "death", "engine"])
async def test_the_end_of_a_flood_lets_the_next_long_job_be_read(by: str) -> None:
    """Its input enters the batch, is cancelled, is a suspect's now, or there is a larger engine. By itself
    Reading looks once a second."""
    bench = Bench()
    flood = job_named("f1")
    flood.input.prompt = (1,) * INFO.token_capacity
    bench.table.take(flood)
    bench.hold("a1")
    async with running(bench):
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.reads == []
        match by:
            case "step":
                flood.admit(0, 0)
                bench.capacity.update(bench.capacity.stats)
            case "end":
                bench.table.conclude(flood, State.CANCELLED)
            case "death":
                bench.table.suspect(flood)
            case "engine":
                bench.ready(replace(INFO, blocks=2 * INFO.blocks))
        await bench.until(lambda: bench.reads == ["a1"], within_s=0.7)


async def test_tenants_take_turns_with_one_job_each_and_when_new() -> None:
    bench = Bench()
    for name in ("c1", "a1", "b1", "c2"):
        bench.hold(name)
    async with running(bench):
        await bench.until(lambda: len(bench.reads) == 2)
        bench.go_on("c1")
        await bench.until(lambda: len(bench.reads) == 3)  # b's; of a nothing else is here
        for name in ("a2", "d1"):
            bench.hold(name)
        bench.go_on("a1")
        await bench.until(lambda: len(bench.reads) == 4)
        bench.go_on("c2")
        await bench.until(lambda: len(bench.reads) == 5)
        bench.go_on("d1")
        await bench.until(lambda: len(bench.reads) == 6)
        bench.go_on("a2")
        bench.go_on("b1")
        await bench.until(lambda: not len(bench.table))
    assert bench.reads == ["c1", "a1", "b1", "c2", "d1", "a2"]


class Away:
    """A server of which `asked` has the requests; each raises `error`, or finds nothing at `go_on`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()
        self._error = error

    async def xrange(self, *given: Any) -> list[Any]:
        self.asked += 1
        if self._error is not None:
            raise self._error
        await self.go_on.wait()
        return []


async def test_a_late_reply_does_not_end_a_later_attempt() -> None:
    away = Away()
    bench = Bench(away)
    earlier = bench.hold("a1", payload=b"")
    async with running(bench):
        await bench.until(lambda: away.asked == 1)
        later = bench.hold("a1")  # its payload is here
        away.go_on.set()
        await bench.until(lambda: bench.reads == ["a1"])
        assert (earlier.end.state, later.end.state) == (State.RUNNING, State.RUNNING)
        assert bench.table.holds(later)


def test_ending_an_earlier_attempt_leaves_the_later_one_waiting() -> None:
    bench = Bench()
    earlier, later = bench.hold("a1"), bench.hold("a1")
    bench.table.conclude(earlier, State.CANCELLED)
    bench.table.drop(earlier)
    assert bench.table.to_read() == [later]


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (ConnectionError("away"), "server does not answer"),
        (ResponseError("LOADING"), "long jobs not read yet"),
    ],
)
async def test_an_outage_is_one_line_of_the_log(error: Exception, event: str) -> None:
    away = Away(error)
    bench = Bench(away)
    bench.hold("a1", payload=b"")
    with structlog.testing.capture_logs() as lines:
        async with running(bench):
            await bench.until(lambda: away.asked == 3)
    assert [(line["event"], line["job_ids"]) for line in lines] == [(event, ["0-a1"])]
