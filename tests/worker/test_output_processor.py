"""What the engine says about jobs, applied to them."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from millstream.wire.keys import QueueKeys
from millstream.wire.messages.messages import Request, State, Timing
from millstream.wire.messages.replies import LaneEntry
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.timing import ServerClock
from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.engine.protocol.outputs import Compiled, Refused
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.engine_link import EnginePort
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics


class Engine(EnginePort):
    """One that takes everything and computes nothing."""

    @property
    def up(self) -> bool:
        return True


def test_a_job_is_known_by_its_first_choice_although_that_is_over() -> None:
    """Both go on after another engine: one can follow its grammar, and the other cannot."""
    unused: Any = None
    metrics = Metrics(CollectorRegistry())
    queue = EngineQueue(Engine())
    table = JobTable(queue)
    processor = OutputProcessor(table, queue, ServerClock(), metrics, ModelSlot(), max_result_bytes=1000)
    jobs = []
    for name in ("refused", "compiled"):
        entry = LaneEntry("batch", "1-1", f"0-{name}", 1, b"")
        request = Request(token_ids=(1,), sampling=SamplingParams(n=2))
        job = Job(QueueKeys("default").shard(0), entry, request, attempt=2, died=0, timing=Timing())
        job.rows = [ChoiceOutput(choice, unused) for choice in range(2)]
        job.rows[0].reason = "stop"
        job.grammar = GrammarSpec("regex", "a+")
        table.take(job)
        jobs.append(job)
    assert all(job.compiling for job in jobs)
    processor.compiled(Compiled(jobs[1].engine_request().handle, 0.1))
    assert not jobs[1].compiling
    assert jobs[1].timing.compiled_ms is not None
    processor.refused(Refused(jobs[0].engine_request().handle, "response_format", "it does not fit"))
    assert [(job.state, job.error and job.error.message) for job in jobs] == [
        (State.FAILED, "it does not fit"),
        (State.RUNNING, None),
    ]
