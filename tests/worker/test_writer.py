"""How much a worker's writer sends in one round: one too large for the line would be repeated unchanged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

from redis.exceptions import ResponseError
from support.workers.jobs import held_job

from millstream.wire.timing import ServerClock
from millstream_worker.delivery.write_builder import MOST_BYTES, FlushPolicy, WriteBuilder, size_of
from millstream_worker.delivery.writer import Writer
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.served_model import ModelSlot
from millstream_worker.observe.watchdog import LoopWatch

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
    while job.acknowledged < len(job.written):
        batch = build.calls(job)
        assert size_of(batch) <= MOST_BYTES + 1000
        sent.append(len(batch))
        job.acknowledged += len(batch)
    assert sent == [4, 4, 2]


async def test_large_writes_of_many_jobs_do_not_go_out_all_at_once() -> None:
    redis, jobs, taken = Refusing(), [job_with(1) for _ in range(10)], []
    table: Any = SimpleNamespace(holds=lambda job: job is not jobs[0])
    handler: Any = SimpleNamespace(take=lambda job, reply, pause_s: taken.append(job))
    writer = Writer(Consumer(redis, "w"), table, ServerClock(), builder(), handler, LoopWatch("writer", 60))
    await writer.write(jobs)
    assert redis.rounds == [4, 4, 1]
    assert taken == jobs[1:]
