"""What is asked of an engine for a job, what becomes of its answers, and how much goes out in one round."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

from prometheus_client import CollectorRegistry
from redis.exceptions import ConnectionError, ResponseError
from support.models.spelling import with_words
from support.models.tokenizers import build
from support.workers.jobs import IdleEngine, held_job
from transformers import PreTrainedTokenizerFast

from millstream.wire.keys import LANES
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import Request, RequestKind, State, Timing
from millstream.wire.messages.sampling import SamplingParams
from millstream.wire.messages.script_replies import AppendOutcome, AppendReply, EndOutcome
from millstream.wire.timing import ServerClock
from millstream_worker.delivery.output_processor import OutputProcessor
from millstream_worker.delivery.reply_handler import ReplyHandler
from millstream_worker.delivery.write_builder import MOST_BYTES, FlushPolicy, WriteBuilder, size_of
from millstream_worker.delivery.writer import Writer
from millstream_worker.engine.grammars.calls.call_form import HERMES
from millstream_worker.engine.protocol.outputs import Compiled, EngineStats, Refused, Step
from millstream_worker.engine.protocol.request import GrammarSpec
from millstream_worker.jobs.call_output import CallOutput, ToolCallMode
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.engine_queue import EngineQueue
from millstream_worker.jobs.engine_request import engine_request
from millstream_worker.jobs.equal_jobs.answers import answer, kept_under
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.output import ChoiceOutput
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.jobs.table import JobTable
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.watchdog import LoopWatch
from millstream_worker.text.model import TextModel


def test_the_lane_of_the_entry_overrides_that_of_the_request() -> None:
    """Clients in other languages may send two."""
    for lane, other in zip(LANES, reversed(LANES), strict=True):
        job = held_job(lane=lane.value, request=Request(token_ids=(1,), lane=other))
        assert engine_request(job).priority == LANES.index(lane)


def test_a_job_is_known_by_its_first_choice_after_it_ended() -> None:
    """Both go on after another engine: one can follow its grammar, and the other cannot."""
    unused: Any = None
    queue = EngineQueue(IdleEngine())
    table = JobTable(queue)
    metrics = Metrics(CollectorRegistry())
    processor = OutputProcessor(table, queue, ServerClock(), Net(metrics), ModelSlot(), max_result_bytes=1000)
    request = Request(token_ids=(1,), sampling=SamplingParams(n=2))
    jobs = [held_job(name, request=request, number=2) for name in ("refused", "compiled")]
    jobs.append(held_job("strange", request=request, number=2))
    for job in jobs:
        job.outputs.rows = [ChoiceOutput(choice, unused) for choice in range(2)]
        job.rows[0].reason = "stop"
        job.input.grammar = GrammarSpec("regex", "a+")
        table.take(job)
    assert all(job.phase is JobPhase.COMPILING for job in jobs)
    processor.compiled(Compiled(engine_request(jobs[1]).handle, 0.1))
    assert jobs[1].phase is JobPhase.QUEUED
    assert jobs[1].times.timing.compiled_ms is not None
    processor.refused(Refused(engine_request(jobs[0]).handle, "response_format", "it does not fit"))
    trace = '  File "x.py", line 7, in compile'
    processor.refused(Refused(engine_request(jobs[2]).handle, "response_format", "Panic", trace))
    assert [(job.end.state, job.end.error and (job.end.error.code, job.end.error.field)) for job in jobs] == [
        (State.FAILED, ("bad_request", "response_format")),
        (State.RUNNING, None),
        (State.FAILED, ("unreadable_request", None)),
    ]


def test_all_equal_jobs_learn_that_their_calls_do_not_fit() -> None:
    """And no later one: such an answer is not kept."""
    tokenizer = with_words(build("byte-level"))
    text = TextModel(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    queue = EngineQueue(IdleEngine())
    table = JobTable(queue)
    model: Any = SimpleNamespace(
        get=lambda: SimpleNamespace(info=SimpleNamespace(eos_ids=(tokenizer.token_to_id("<end>"),)))
    )
    metrics = Metrics(CollectorRegistry())
    processor = OutputProcessor(table, queue, ServerClock(), Net(metrics), model, max_result_bytes=10**6)
    jobs = [held_job(name, cache_key=b"same") for name in ("leader", "follower")]
    for job in jobs:
        calling = CallOutput(ToolCallMode(job.id, HERMES, {"f": ""}, "tool_calls"), 0)
        job.outputs.rows = [
            ChoiceOutput(0, text.detokenizer(special=True, calls=True), calling=calling, constrained=True)
        ]
        job.input.grammar = GrammarSpec("tools", "{}")
        table.take(job)
    leader, follower = jobs
    assert queue.followers.of(leader) == [follower]
    said = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = [*tokenizer.encode(said).ids, tokenizer.token_to_id("<end>")]
    handle = leader.outputs.handle
    processor.compiled(Compiled(handle, 0.1))
    processor.step(Step([handle] * len(ids), ids, [], [(handle, 0)], [], EngineStats(), held=[handle]))
    told = [row.take() for job in jobs for row in job.rows]
    pieces = [piece for delta in told if delta for piece in delta["tool_call_deltas"]]
    assert [(piece["name"], piece["arguments"]) for piece in pieces] == [("f", "{}")] * 2
    why = "the arguments of f do not fit its parameters: 'a' is a required property"
    processor.step(Step([], [], [(handle, "stop")], [], [], EngineStats(), misfits=[(handle, why)]))
    assert kept_under(leader) == b"same", "its end is not told yet"
    for job in jobs:
        assert job.end.state is State.COMPLETED
        assert answer(job) == table.answers.of(job) == b""
        [told] = [Choice.model_validate(row.choice()) for row in job.rows]
        assert (told.complete, told.schema_error, told.finish_reason) == (False, why, "tool_calls")
        assert [call.function.name for call in told.tool_calls] == ["f"]
    assert [job.outputs.cached for job in jobs] == [False, True]


BODY = b"x" * (MOST_BYTES // 4)


def job_with(bodies: int) -> Job:
    return held_job(written=[BODY] * bodies)


def builder() -> WriteBuilder:
    return WriteBuilder("w", ServerClock(), ModelSlot(), FlushPolicy(1.0, 1.0, 1000, 10))


class Refusing:
    """A server that refuses all that it gets, and notes the number of commands in each round."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def pipeline(self, *, transaction: bool) -> Self:
        self.rounds.append(0)
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def execute_command(self, *command: Any) -> None:
        self.rounds[-1] += 1

    async def execute(self, *, raise_on_error: bool) -> list[Exception]:
        return [ResponseError("not now")] * self.rounds[-1]


def test_one_jobs_long_log_does_not_go_out_all_at_once() -> None:
    job, build, sent = job_with(10), builder(), []
    while job.log.acknowledged < len(job.log.written):
        batch = build.calls(job)
        assert size_of(batch) <= MOST_BYTES + 1000
        sent.append(len(batch))
        job.log.acknowledged += len(batch)
    assert sent == [4, 4, 2]


async def test_large_writes_of_many_jobs_do_not_go_out_all_at_once() -> None:
    redis, jobs, taken = Refusing(), [job_with(1) for _ in range(10)], []
    table: Any = SimpleNamespace(holds=lambda job: job is not jobs[0])
    handler: Any = SimpleNamespace(take=lambda job, reply, pause_s: taken.append(job))
    writer = Writer(Consumer(redis, "w"), table, ServerClock(), builder(), handler, LoopWatch("writer", 60))
    await writer.write(jobs)
    assert redis.rounds == [4, 4, 1]
    assert taken == jobs[1:]


def test_a_trouble_of_the_server_counts_once() -> None:
    """However often writes are repeated in it, and whichever way its jobs leave the table."""
    registry = CollectorRegistry()
    table = JobTable(EngineQueue(IdleEngine()))
    handler = ReplyHandler(table, Metrics(registry), log_payloads=False)
    jobs = [held_job(name) for name in ("one", "two", "gone")]
    for job in jobs:
        table.take(job)
    wrong = ResponseError("WRONGTYPE somebody else's")

    def troubles() -> float | None:
        return registry.get_sample_value("millstream_write_troubles_total", {"queue": "default"})

    def refuse(error: Exception, *refused: Job) -> float | None:
        for job in refused:
            handler.take(job, error, 0.1)
        return troubles()

    def pass_writes(*passed: Job) -> None:
        for job in passed:
            handler.take(job, AppendReply(AppendOutcome.OK, 0), 0.0)

    assert troubles() == 0
    assert refuse(ConnectionError("gone"), *jobs, *jobs) == 1
    pass_writes(jobs[0])
    assert refuse(ConnectionError("gone"), *jobs) == 1, "the writes of others were still refused"
    pass_writes(*jobs)
    assert refuse(ResponseError("NOREPLICAS"), jobs[2], jobs[2]) == 2
    table.drop(jobs[2])
    assert refuse(wrong, jobs[0]) == 3
    pass_writes(jobs[1])
    assert refuse(wrong, jobs[0]) == 3, "it is the same damage"


def test_a_count_is_no_answer_whose_time_is_taken() -> None:
    registry = CollectorRegistry()
    table = JobTable(EngineQueue(IdleEngine()))
    handler = ReplyHandler(table, Metrics(registry), log_payloads=False)
    for name, kind in (("answer", RequestKind.ANSWER), ("count", RequestKind.COUNT)):
        request, times = Request(token_ids=(0,), kind=kind), Timing(submitted_ms=1, finished_ms=2)
        job = held_job(name, request=request, timing=times)
        table.take(job)
        job.conclude(State.COMPLETED)
        handler.take(job, EndOutcome.OK, 0.0)
    taken = registry.get_sample_value(
        "millstream_e2e_request_latency_seconds_count", {"queue": "default", "lane": "batch"}
    )
    ended = registry.get_sample_value("millstream_requests_total", {"queue": "default", "state": "completed"})
    assert (taken, ended) == (1, 2)
