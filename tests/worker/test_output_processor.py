"""What is asked of an engine for a job, and what the engine says about jobs, applied to them."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from support.workers.jobs import IdleEngine, held_job

from millstream.wire.keys import LANES
from millstream.wire.messages.messages import Request, State
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.timing import ServerClock
from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.engine.protocol.outputs import Compiled, Refused
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics


def test_the_lane_of_the_entry_counts_and_not_that_of_the_request() -> None:
    """Clients in other languages may send two."""
    for lane, other in zip(LANES, reversed(LANES), strict=True):
        job = held_job(lane=lane.value, request=Request(token_ids=(1,), lane=other))
        assert job.engine_request().priority == LANES.index(lane)


def test_a_job_is_known_by_its_first_choice_although_that_is_over() -> None:
    """Both go on after another engine: one can follow its grammar, and the other cannot."""
    unused: Any = None
    queue = EngineQueue(IdleEngine())
    table = JobTable(queue)
    metrics = Metrics(CollectorRegistry())
    processor = OutputProcessor(table, queue, ServerClock(), metrics, ModelSlot(), max_result_bytes=1000)
    request = Request(token_ids=(1,), sampling=SamplingParams(n=2))
    jobs = [held_job(name, request=request, attempt=2) for name in ("refused", "compiled")]
    for job in jobs:
        job.rows = [ChoiceOutput(choice, unused) for choice in range(2)]
        job.rows[0].reason = "stop"
        job.grammar = GrammarSpec("regex", "a+")
        table.take(job)
    assert all(job.compiling for job in jobs)
    processor.compiled(Compiled(jobs[1].engine_request().handle, 0.1))
    assert not jobs[1].compiling
    assert jobs[1].timing.compiled_ms is not None
    processor.refused(Refused(jobs[0].engine_request().handle, "response_format", "it does not fit"))
    assert [(job.state, job.error and job.error.message) for job in jobs] == [
        (State.FAILED, "it does not fit"),
        (State.RUNNING, None),
    ]
