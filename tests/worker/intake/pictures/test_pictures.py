"""Whose image is prepared next, how many at a time, and what becomes of jobs whose images cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf

from prometheus_client import CollectorRegistry
from support.engine.ready import INFO
from support.workers.counting_worker import until
from support.workers.image_bench import NotingEngine, job_with, prepared

from millstream.wire.messages.job_messages import State
from millstream_worker.images.messages import BadImage, ImageData, ImageTokens
from millstream_worker.intake.message_fetch import MessageFetch
from millstream_worker.intake.pictures.pictures import Pictures
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch


class Bench:
    """`begun`: the images whose preparation has begun, in order; `go` lets so many end."""

    def __init__(self, *, at_once: int = 1, memory: int = 1000, size: int = 10) -> None:
        self.engine = NotingEngine()
        self.queue = EngineQueue(self.engine)
        self.table = JobTable(self.queue)
        self.begun: list[str] = []
        self.completed: list[str] = []
        self.size = size
        self._passes = asyncio.Semaphore(0)
        model = ModelSlot()
        unused: object = None  # nothing is tokenized
        model.publish(ServedModel(unused, replace(INFO, image_memory=memory, feature_bytes=1)))  # type: ignore[arg-type]
        self.pictures = Pictures(
            self.table, self.queue, model, MessageFetch(Consumer(None, "w"), self.table),
            Net(Metrics(CollectorRegistry())), LoopWatch("pictures", inf),
            prepare=self._prepare, complete=self._complete, at_once=lambda: at_once,
        )  # fmt: skip

    def take(self, *jobs: Job) -> None:
        for job in jobs:
            self.table.take(job)

    def go(self, images: int = 1) -> None:
        for _ in range(images):
            self._passes.release()

    async def _prepare(self, data: bytes) -> ImageData:
        self.begun.append(data.decode())
        await self._passes.acquire()
        if data.startswith(b"bad"):
            raise BadImage("damaged", "is no whole image; save it again")
        return prepared(self.size)

    async def _complete(self, job: Job, tokens: Sequence[ImageTokens]) -> None:
        assert len(tokens) == len(job.input.images.digests)
        self.completed.append(job.id.removeprefix("0-"))
        job.move(JobPhase.READY)


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    task = asyncio.create_task(bench.pictures.run())
    try:
        yield
    finally:
        bench.pictures.stop()
        await task


def job(name: str, *images: str, **fields: object) -> Job:
    return job_with(name, *images, engine=CURRENT[0].engine, **fields)


CURRENT: list[Bench] = []


def bench_of(**options: int) -> Bench:
    CURRENT[:] = [Bench(**options)]
    return CURRENT[0]


async def test_tenants_take_turns_with_one_image_each() -> None:
    bench = bench_of()
    many = [f"a{number}" for number in range(5)]
    bench.take(job("a1", *many), job("b1", "b0", "b1"), job("c1", "c0"))
    bench.go(100)
    async with running(bench):
        await until(lambda: len(bench.completed) == 3)
    assert bench.begun[:3] == ["a0", "b0", "c0"]
    assert bench.begun[3:5] == ["a1", "b1"]
    assert bench.completed == ["c1", "b1", "a1"]


async def test_interactive_jobs_come_first() -> None:
    bench = bench_of()
    bench.take(job("a1", "a0", "a1"))
    async with running(bench):
        await until(lambda: bench.begun == ["a0"])
        bench.take(job("a2", "soon", lane="interactive"))
        bench.go(100)
        await until(lambda: len(bench.completed) == 2)
    assert bench.begun == ["a0", "soon", "a1"]


async def test_no_more_than_so_many_are_prepared_at_once() -> None:
    bench = bench_of(at_once=2)
    bench.take(*(job(f"{tenant}1", f"{tenant}0", f"{tenant}1") for tenant in "abc"))
    async with running(bench):
        await until(lambda: len(bench.begun) == 2)
        await asyncio.sleep(0.05)
        assert len(bench.begun) == 2
        bench.go(100)
        await until(lambda: len(bench.completed) == 3)


async def test_a_page_that_several_jobs_have_is_prepared_once() -> None:
    bench = bench_of(at_once=4)
    bench.take(*(job(f"a{number}", "page") for number in range(10)), job("b1", "page"))
    async with running(bench):
        await until(lambda: len(bench.begun) == 2)
        bench.go(2)
        await until(lambda: len(bench.completed) == 11)
    assert bench.begun == ["page", "page"]
    assert sorted(bench.engine.given)[11:] == ["hold apage", "hold bpage"]


async def test_a_bad_image_ends_all_jobs_that_wait_for_it() -> None:
    bench = bench_of()
    jobs = [job("a1", "good", "bad"), job("a2", "bad"), job("a3", "good")]
    bench.take(*jobs)
    bench.go(100)
    async with running(bench):
        await until(lambda: all(one.phase.has_ended for one in jobs[:2]) and bool(bench.completed))
    for one, field in zip(jobs, ("messages[0].parts[1]", "messages[0].parts[0]"), strict=False):
        assert one.end.state is State.FAILED
        assert one.end.error is not None
        assert (one.end.error.code, one.end.error.field) == ("bad_request", field)
        assert one.end.error.message == f"{field}: is no whole image; save it again (got '3 bytes')"
    assert bench.completed == ["a3"]


async def test_a_job_beyond_the_bound_is_refused_and_others_go_on() -> None:
    bench = bench_of(memory=25)
    large, small = job("a1", "a0", "a1", "a2"), job("b1", "b0")
    bench.take(large, small)
    bench.go(100)
    async with running(bench):
        await until(lambda: large.phase.has_ended and bench.completed == ["b1"])
    assert large.end.error is not None
    assert "its 3 images take more than 0 MB when prepared" in large.end.error.message
    assert bench.queue.images.bytes == 10


async def test_images_beyond_the_bound_wait_for_the_engine() -> None:
    """Also where none of their sizes was known before."""
    bench = bench_of(at_once=3, memory=25)
    jobs = [job(f"{tenant}1", f"{tenant}0") for tenant in "abcde"]
    bench.take(*jobs)
    bench.go(100)
    async with running(bench):
        for ended in range(4):
            await until(lambda ended=ended: len(bench.completed) == min(5, ended + 2))
            assert bench.queue.images.reserved_bytes <= 25
            done = next(one for one in bench.table if one.phase is JobPhase.QUEUED)
            bench.table.drop(done)
        await until(lambda: len(bench.completed) == 5)


async def test_two_large_jobs_do_not_wait_for_each_other() -> None:
    bench = bench_of(at_once=2, memory=40)
    jobs = [job(f"{tenant}1", *(f"{tenant}{number}" for number in range(4))) for tenant in "ab"]
    bench.take(*jobs)
    bench.go(100)
    async with running(bench):
        await until(lambda: len(bench.completed) == 1)
        bench.table.drop(next(one for one in jobs if one.phase is JobPhase.QUEUED))
        await until(lambda: len(bench.completed) == 2)


async def test_jobs_that_end_meanwhile_hold_nothing() -> None:
    bench = bench_of()
    ended = job("a1", "a0", "a1")
    bench.take(ended)
    async with running(bench):
        await until(lambda: bench.begun == ["a0"])
        bench.table.conclude(ended, State.CANCELLED)
        bench.go(2)
        bench.take(job("b1", "b0"))
        await until(lambda: bench.completed == ["b1"])
    assert bench.begun == ["a0", "b0"]
    assert bench.queue.images.bytes == 10


async def test_others_wait_while_a_suspect_is_isolated() -> None:
    bench = bench_of()
    suspect, other = job("a1", "a0", alone=True), job("b1", "b0")
    bench.take(suspect, other)
    bench.queue.isolated = suspect
    bench.go(100)
    async with running(bench):
        await until(lambda: bench.completed == ["a1"])
        await asyncio.sleep(0.05)
        assert bench.begun == ["a0"]
        bench.queue.isolated = None
        bench.table.changed.notify()
        await until(lambda: bench.completed == ["a1", "b1"])


async def test_files_of_many_images_are_not_kept_here() -> None:
    bench = bench_of()
    assert bench.pictures.takes_more
    large = job("a1", "a0")
    large.input.images.files = {b"": bytes(33 * 2**20)}
    bench.take(large)
    assert not bench.pictures.takes_more


async def test_a_shared_image_lets_no_more_begin_than_fit() -> None:
    bench = bench_of(memory=35)
    bench.take(*(job(f"a{number}", "shared", f"own{number}") for number in range(6)))
    bench.go(100)
    async with running(bench):
        await until(lambda: len(bench.completed) == 2)
        await asyncio.sleep(0.05)
        assert (len(bench.begun), bench.queue.images.bytes) == (3, 30)
        while len(bench.completed) < 6:
            before = len(bench.completed)
            bench.table.drop(next(one for one in bench.table if one.phase is JobPhase.QUEUED))
            await until(lambda before=before: len(bench.completed) > before)


async def test_a_job_of_many_images_is_not_passed_over() -> None:
    bench = bench_of(memory=40)
    bench.take(*(job(f"b{number}", f"b{number}") for number in range(3)))
    bench.go(100)
    async with running(bench):
        await until(lambda: len(bench.completed) == 3)
        bench.take(job("a1", *(f"a{number}" for number in range(4))))
        bench.take(*(job(f"b{number}", f"b{number}") for number in range(3, 9)))
        await asyncio.sleep(0.05)
        while len(bench.completed) < 10:
            before = len(bench.completed)
            bench.table.drop(next(one for one in bench.table if one.phase is JobPhase.QUEUED))
            await asyncio.sleep(0.01)
            if not any(one.phase is JobPhase.QUEUED for one in bench.table):
                await until(lambda before=before: len(bench.completed) > before)
    assert bench.completed.index("a1") <= 5
    assert bench.queue.images.bytes <= 40


async def test_jobs_that_wait_for_each_others_images_go_on() -> None:
    """Each holds what the engine has of a job that has ended, and needs more than the rest."""
    bench = bench_of(memory=40)
    first = job("a1", "r", "s", "t")
    bench.take(first)
    bench.go(100)
    async with running(bench):
        await until(lambda: bench.completed == ["a1"])
        for name, images in (("a2", ("r", "u", "v")), ("a3", ("s", "t", "w"))):
            bench.take(waiting := job(name, *images))
            bench.queue.images.begin(waiting)
        await until(lambda: len(bench.begun) >= 5)
        bench.table.drop(first)
        await until(lambda: "a2" in bench.completed or "a3" in bench.completed)
        bench.table.drop(next(one for one in bench.table if one.phase is JobPhase.QUEUED))
        await until(lambda: len(bench.completed) == 3)
