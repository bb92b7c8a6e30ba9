"""Reads a job's payload and prepares it for the engine, in a thread if it is long. Whatever is wrong with it
ends the job; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millstream.errors import InvalidRequest, ProtocolError
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import ErrorInfo, State
from millstream.wire.messages.record import merged_choices
from millstream.wire.messages.script_replies import LogEntry, StartReply
from millstream.wire.versions import FIRST_VERSION, TAKEN
from millstream_worker.images.messages import ImageTokens
from millstream_worker.intake.capacity import Capacity
from millstream_worker.intake.pictures.image_placeholders import replace_placeholders
from millstream_worker.intake.preparation.job_bounds import JobBounds
from millstream_worker.intake.preparation.prepare_job import complete, prepare
from millstream_worker.intake.preparation.resumed_rows import LogDamaged
from millstream_worker.jobs.equal_jobs.cache_key import cache_key
from millstream_worker.jobs.job import Job
from millstream_worker.jobs.job_phase import JobPhase
from millstream_worker.jobs.net import Net
from millstream_worker.jobs.served_model import ModelSlot, ServedModel
from millstream_worker.threads import in_thread

_LONG_BYTES = 4096  # beyond that reading and tokenizing would delay the loop


class JobPreparer:
    """`keeps`: answers are kept for equal requests."""

    def __init__(
        self, model: ModelSlot, capacity: Capacity, bounds: JobBounds, net: Net, *, keeps: bool
    ) -> None:
        self.net = net
        self._keeps = keeps
        self._model = model
        self._capacity = capacity
        self._bounds = bounds

    async def prepare(self, job: Job, started: StartReply) -> None:
        """A job with images is PREPARING then."""
        job.move(JobPhase.READING)
        with self.net.around(job):
            await self._prepare(job, started)
        self._end_reading(job, started)

    async def complete(self, job: Job, started: StartReply, tokens: Sequence[ImageTokens]) -> None:
        """The job's images are prepared. `tokens`: of each in its messages, in order."""
        job.move(JobPhase.READING)
        with self.net.around(job):
            await self._read_in(in_thread, job, started, _complete, tokens)
        self._end_reading(job, started)

    def _end_reading(self, job: Job, started: StartReply) -> None:
        if not job.rows:  # but the output of earlier attempts is published
            self.recall(job, started)
        job.set_read()

    def recall(self, job: Job, started: StartReply) -> None:
        """Give the job the output of earlier attempts as it is in the log."""
        with self.net.around(job):
            job.outputs.earlier = earlier_choices(started.log)

    async def _prepare(self, job: Job, started: StartReply) -> None:
        if job.entry.version not in TAKEN:
            problem = f"there is no version {job.entry.version}; send {FIRST_VERSION} or a later one"
            raise InvalidRequest("version", job.entry.version, problem)
        run = in_thread if size_of(job, started) > _LONG_BYTES else _here
        await self._read_in(run, job, started, _begin)

    async def _read_in(self, run: Any, job: Job, started: StartReply, part: Any, *more: Any) -> None:
        """Run a part of the reading, in a thread or here."""
        try:
            await run(_read, part, job, started, self._model.get(), self._bounds, self._keeps, *more)
        except LogDamaged as error:
            fail(job, "log_damaged", str(error))
            return
        if job.input.images.files:  # the length of its prompt is not known yet
            return
        self._capacity.learn(len(job.input.prompt))
        if all(row.reason is not None for row in job.rows):
            job.conclude(State.COMPLETED)  # only its end was not written


async def _here(function: Callable[..., None], *args: Any) -> None:
    function(*args)


def _begin(job: Job, started: StartReply, served: ServedModel, bounds: JobBounds) -> None:
    prepare(job, started, served.text, served.info, bounds, served.defaults, served.images)


def _complete(
    job: Job, started: StartReply, served: ServedModel, bounds: JobBounds, tokens: Sequence[ImageTokens]
) -> None:
    assert served.images is not None, "another engine serves the same model"
    replace_placeholders(job, served.images, tokens, bounds.most_input(served.info))
    complete(job, started, served.text, served.info, bounds)


def _read(
    part: Callable[..., None],
    job: Job,
    started: StartReply,
    served: ServedModel,
    bounds: JobBounds,
    keeps: bool,
    *more: Any,
) -> None:
    part(job, started, served, bounds, *more)
    if job.input.images.files:
        return
    if keeps and not job.outputs.tokens:  # else a part of it was perhaps computed in another format
        job.input.cache_key = cache_key(job, served)


def size_of(job: Job, started: StartReply) -> int:
    """Bytes of its message and its log."""
    return len(job.entry.payload) + sum(len(entry.body) for entry in started.log)


def earlier_choices(log: Sequence[LogEntry]) -> tuple[Choice, ...]:
    """The output of earlier attempts, valid for any request."""
    try:
        return merged_choices(log)
    except ProtocolError:
        return ()


def fail(job: Job, code: str, message: str) -> None:
    job.conclude(State.FAILED, ErrorInfo(code=code, message=message))
