"""Prepared images: each is sent once, shared within a tenant, and dropped with the last job that has it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.workers.image_bench import NotingEngine, job_with, prepared

from millstream.wire.messages.job_messages import State
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.job_records import digest_of
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.table import JobTable

UNUSED: Any = None  # nothing is tokenized


class Bench:
    def __init__(self) -> None:
        self.engine = NotingEngine()
        self.queue = EngineQueue(self.engine)
        self.table = JobTable(self.queue)
        self.images = self.queue.images

    def take(self, name: str, *images: str) -> Job:
        job = job_with(name, *images, engine=self.engine)
        job.outputs.rows = [ChoiceOutput(0, UNUSED)]
        self.table.take(job)
        self.images.begin(job)
        return job

    def prepare(self, *jobs: Job, size: int = 10) -> None:
        """All that they miss, and hand them over."""
        for job in jobs:
            self.images.begin(job)
        for job in jobs:
            for digest in self.images.missing(job):
                sharing = [
                    one for one in self.table if one.request.tenant == job.request.tenant
                    and digest in one.input.images.digests and one.phase is JobPhase.PREPARING
                ]  # fmt: skip
                self.images.put(sharing, digest, prepared(size), feature_bytes=1)
        for job in jobs:
            assert self.images.reserve(job, 10**6)
            job.move(JobPhase.READY)
        self.queue.hand_over()


def test_an_image_is_sent_once_and_dropped_with_its_last_job() -> None:
    bench = Bench()
    one, two = bench.take("a1", "x"), bench.take("a2", "x", "y", "x")
    bench.prepare(one, two)
    assert bench.engine.given == ["hold ax", "add 1", "hold ay", "add 2"]
    assert [tokens.features for tokens in bench.images.tokens(two)] == [2, 2, 2]
    bench.table.conclude(one, State.CANCELLED)
    assert bench.engine.given[4:] == []
    bench.table.drop(two)
    assert sorted(bench.engine.given[4:]) == ["drop ax", "drop ay"]
    assert (bench.images.bytes, bench.images.reserved_bytes) == (0, 0)


def test_tenants_share_none_unless_prefixes_are_shared() -> None:
    bench = Bench()
    bench.prepare(bench.take("a1", "x"), bench.take("b1", "x"))
    assert bench.engine.given == ["hold ax", "add 1", "hold bx", "add 2"]
    shared = Bench()
    shared.images.salted = False
    one, two = shared.take("a1", "x"), shared.take("b1", "x")
    shared.images.put([one, two], digest_of(b"x"), prepared(), feature_bytes=1)
    shared.prepare(one, two)
    assert shared.engine.given == ["hold x", "add 1", "add 2"]


def test_what_was_not_sent_is_not_dropped_in_the_engine() -> None:
    bench = Bench()
    job = bench.take("a1", "x")
    bench.images.put([job], digest_of(b"x"), prepared(), feature_bytes=1)
    bench.table.conclude(job, State.EXPIRED)
    assert bench.engine.given == []
    assert bench.images.bytes == 0


def test_a_lost_engine_takes_what_it_had_along() -> None:
    bench = Bench()
    sent, waiting = bench.take("a1", "x"), bench.take("b1", "y")
    bench.prepare(sent)
    bench.images.put([waiting], digest_of(b"y"), prepared(), feature_bytes=1)
    bench.queue.engine_lost()
    assert (sent.phase, waiting.phase) == (JobPhase.PREPARING, JobPhase.PREPARING)
    assert bench.images.missing(sent) == [digest_of(b"x")]
    assert bench.images.missing(waiting) == []


def test_a_reservation_keeps_the_bound() -> None:
    bench = Bench()
    jobs = [bench.take(f"a{number}", f"x{number}") for number in range(3)]
    for number, job in enumerate(jobs):
        bench.images.put([job], digest_of(f"x{number}".encode()), prepared(40), feature_bytes=1)
    assert [bench.images.reserve(job, 100) for job in jobs] == [True, True, False]
    assert bench.images.reserved_bytes == 80
    bench.table.drop(jobs[0])
    assert bench.images.reserve(jobs[2], 100)


def test_the_larger_of_pixels_and_features_counts() -> None:
    bench = Bench()
    job = bench.take("a1", "x")
    assert bench.images.put([job], digest_of(b"x"), prepared(10), feature_bytes=50) == 100
    assert bench.images.size_of(job) == 100


class Jobs(RuleBasedStateMachine):
    """Whatever jobs come, end and lose their engine: the engine has what its jobs need, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.made = 0

    @rule(tenant=st.sampled_from("ab"), images=st.lists(st.sampled_from("xyz"), min_size=1, max_size=3))
    def come(self, tenant: str, images: list[str]) -> None:
        self.made += 1
        self.bench.take(f"{tenant}{self.made}", *images)

    @rule()
    def prepare(self) -> None:
        self.bench.prepare(*self.bench.table.to_prepare())

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if jobs := list(self.bench.table):
            self.bench.table.drop(data.draw(st.sampled_from(jobs)))

    @rule()
    def lose(self) -> None:
        self.bench.queue.engine_lost()
        self.bench.engine.given.clear()
        self.bench.queue.engine_ready()
        self.bench.queue.engine_worked()

    @invariant()
    def the_engine_has_what_it_needs(self) -> None:
        has: set[str] = set()
        for line in self.bench.engine.given:
            kind, name = line.split()
            if kind == "hold":
                assert name not in has
                has.add(name)
            elif kind == "drop":
                has.remove(name)
        names = self.bench.engine.names
        needed = {
            job.request.tenant + names[digest]
            for job in self.bench.table
            for digest in job.input.images.digests
            if job.phase is JobPhase.QUEUED
        }
        assert needed <= has
        held = [job for job in self.bench.table if self.bench.images.has_begun(job)]
        of_jobs = {job.request.tenant + names[digest] for job in held for digest in job.input.images.digests}
        assert has <= of_jobs
        assert self.bench.images.bytes >= self.bench.images.reserved_bytes >= 0


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.mark.parametrize("phase", [JobPhase.READY, JobPhase.PREPARING])
def test_a_ready_job_without_its_images_waits_for_them(phase: JobPhase) -> None:
    bench = Bench()
    job = bench.take("a1", "x")
    job.phase = phase
    bench.queue.hand_over()
    assert job.phase is JobPhase.PREPARING
    assert bench.engine.given == []
