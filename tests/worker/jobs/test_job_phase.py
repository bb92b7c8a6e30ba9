"""A job's phases: the moves that are drawn, and no others, are made by what happens to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from prometheus_client import CollectorRegistry
from support.engine.ready import INFO
from support.workers.jobs import IdleEngine, held_job

from millstream.wire.timing import ServerClock
from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Step
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics

UNUSED: Any = None  # nothing is tokenized
GIVEN = {JobPhase.COMPILING, JobPhase.QUEUED, JobPhase.RUNNING}


def drawn() -> set[tuple[JobPhase, JobPhase]]:
    """The arrows in the docstring of JobPhase."""
    moves = set()
    for line in (JobPhase.__doc__ or "").splitlines():
        stops = [re.findall(r"[A-Z_]{5,}", stop) for stop in line.split("─►")]
        for before, after in pairwise(stops):
            moves |= {(JobPhase[one], JobPhase[other]) for one, other in product(before, after)}
    return moves


@pytest.mark.parametrize("before", JobPhase)
@pytest.mark.parametrize("after", JobPhase)
def test_the_drawn_moves_are_made_and_no_others(before: JobPhase, after: JobPhase) -> None:
    if (before, after) in drawn():
        assert before.move(after) is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} to {after.name}"):
            before.move(after)


def test_a_job_that_runs_was_in_the_engine_or_follows() -> None:
    ways = {before for before, after in drawn() if after is JobPhase.RUNNING}
    assert ways == {JobPhase.COMPILING, JobPhase.QUEUED, JobPhase.FOLLOWING}
    told = {before for before, after in drawn() if after is JobPhase.ENDED}
    assert told == set(JobPhase) - {JobPhase.READING, JobPhase.ENDED}


class Engine(IdleEngine):
    is_up = False

    @property
    def up(self) -> bool:
        return self.is_up


def having(*phases: JobPhase) -> Callable[[Any], Any]:
    """A rule's precondition: a job is in one of these."""
    return precondition(lambda self: any(job.phase in phases for job in self.table))


class Front(RuleBasedStateMachine):
    """A worker's front without a queue: whatever happens in whichever order, each job is where its phase
    says."""

    def __init__(self) -> None:
        super().__init__()
        self.engine, model = Engine(), ModelSlot()
        self.queue = EngineQueue(self.engine)
        self.table = JobTable(self.queue)
        model.publish(ServedModel(UNUSED, INFO))
        net = Net(Metrics(CollectorRegistry()))
        self.output = OutputProcessor(
            self.table, self.queue, ServerClock(), net, model, max_result_bytes=1000
        )
        self.made = 0

    def some(self, data: st.DataObject, *phases: JobPhase) -> Job:
        return data.draw(st.sampled_from([job for job in self.table if job.phase in phases]))

    @rule(key=st.sampled_from((b"", b"1", b"2")), lane=st.sampled_from(("batch", "interactive")))
    def put_off(self, key: bytes, lane: str) -> None:
        self.take(key, lane, JobPhase.UNREAD)

    @rule(key=st.sampled_from((b"1", b"2")), lane=st.sampled_from(("batch", "interactive")))
    def take_read(self, key: bytes, lane: str) -> None:
        self.take(key, lane, JobPhase.READY)

    def take(self, key: bytes, lane: str, phase: JobPhase) -> None:
        self.made += 1
        job = held_job(str(self.made), lane=lane, prompt=(1,), cache_key=key, phase=phase)
        job.outputs.rows = [ChoiceOutput(0, UNUSED)]
        job.input.grammar = GrammarSpec("regex", "a") if key == b"2" else None
        self.table.take(job)

    @having(JobPhase.UNREAD)
    @rule(data=st.data())
    def begin_reading(self, data: st.DataObject) -> None:
        self.some(data, JobPhase.UNREAD).move(JobPhase.READING)

    @having(JobPhase.READING, JobPhase.ENDING)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        job = self.some(data, JobPhase.READING, JobPhase.ENDING)
        job.set_read()
        self.queue.hand_over()

    @having(JobPhase.LOOKING_UP)
    @rule(data=st.data())
    def find_no_answer(self, data: st.DataObject) -> None:
        self.some(data, JobPhase.LOOKING_UP).move(JobPhase.READY)
        self.queue.hand_over()

    @having(JobPhase.COMPILING)
    @rule(data=st.data())
    def compile(self, data: st.DataObject) -> None:
        self.output.compiled(Compiled(self.some(data, JobPhase.COMPILING).outputs.handle, 0.1))

    @having(JobPhase.COMPILING, JobPhase.QUEUED)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        handle = self.some(data, JobPhase.COMPILING, JobPhase.QUEUED).outputs.handle
        self.output.step(Step([], [], [], [(handle, 0)], [], EngineStats()))

    @having(JobPhase.RUNNING)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        job = self.some(data, JobPhase.RUNNING)
        if self.queue.computes(job):
            self.output.step(Step([], [], [(job.outputs.handle, "length")], [], [], EngineStats()))

    @having(*JobPhase)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.table.cancel(self.some(data, *JobPhase).id)

    @having(JobPhase.ENDED)
    @rule(data=st.data())
    def write_end(self, data: st.DataObject) -> None:
        self.table.drop(self.some(data, JobPhase.ENDED))

    @having(JobPhase.UNREAD, JobPhase.RUNNING)
    @rule(data=st.data())
    def lose_lease(self, data: st.DataObject) -> None:
        self.table.drop(self.some(data, JobPhase.UNREAD, JobPhase.RUNNING))

    @precondition(lambda self: self.engine.is_up)
    @rule()
    def lose_engine(self) -> None:
        self.engine.is_up = False
        self.queue.engine_lost()

    @precondition(lambda self: not self.engine.is_up)
    @rule()
    def start_engine(self) -> None:
        self.engine.is_up = True
        self.queue.engine_ready()
        self.queue.engine_worked()

    @invariant()
    def each_job_is_where_its_phase_says(self) -> None:
        followers = {
            job for leader in self.queue.followers.leaders for job in self.queue.followers.of(leader)
        }
        for job in self.table:
            follows, runs = job in followers, job.phase is JobPhase.RUNNING
            assert follows == (job.phase is JobPhase.FOLLOWING or (runs and job.outputs.cached))
            assert self.queue.computes(job) == (job.phase in GIVEN and not follows)
            assert self.engine.is_up or job.phase not in GIVEN
        assert {job for job, _ in self.queue.rows.values()} <= set(self.table)
        assert followers <= set(self.table)

    @invariant()
    def no_ready_job_is_left_behind(self) -> None:
        assert not (self.engine.is_up and any(job.phase is JobPhase.READY for job in self.table))


Front.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
test_any_order_of_moves_keeps_jobs_in_place = Front.TestCase
