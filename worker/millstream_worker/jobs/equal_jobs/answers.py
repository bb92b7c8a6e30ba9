"""The answer that equal jobs share: which job may take one, and which gives its own."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.errors import ProtocolError
from millstream.wire.messages.choices import Choice
from millstream.wire.messages.job_messages import State
from millstream_worker.jobs import encoding
from millstream_worker.jobs.job import Job

MOST_KEPT_BYTES = 2**20  # of a result for equal requests: it is read in the loop


class EndedAnswers:
    """Answers of jobs that have completed here, until they are written."""

    def __init__(self) -> None:
        self._jobs: dict[bytes, Job] = {}  # by cache_key

    def add(self, job: Job) -> None:
        if key := kept_under(job):
            self._jobs.setdefault(key, job)

    def drop(self, job: Job) -> None:
        if self._jobs.get(job.input.cache_key) is job:
            del self._jobs[job.input.cache_key]

    def of(self, job: Job) -> bytes:
        """Returns the answer of an equal job; else empty."""
        ended = self._jobs.get(job.input.cache_key)
        return b"" if ended is None else answer(ended)


def takes_answer(job: Job) -> bool:
    """True if an equal job's answer may still be its own: it has nothing of its own yet."""
    return job.phase.is_before_batch and not job.no_cache and not job.outputs.tokens


def kept_under(job: Job) -> bytes:
    """Returns the key under which its answer is kept; empty: it is not."""
    whole = job.end.state is State.COMPLETED and all(row.complete is not False for row in job.rows)
    kept = whole and not job.outputs.cached and job.result_bytes <= MOST_KEPT_BYTES
    return job.input.cache_key if kept else b""


def answer(job: Job) -> bytes:
    """Returns the choices of an ended job's result, as one, for equal jobs; empty if it is not kept."""
    job.take_delta()  # which may find that it is not complete
    return encoding.delta([row.choice() for row in job.rows]) if kept_under(job) else b""


def adopt(job: Job, choices: Sequence[Choice]) -> None:
    """Take the answer of an equal job. Raises ProtocolError, first of all, for what is none."""
    if len(choices) != len(job.rows):
        raise ProtocolError(f"a kept answer has {len(choices)} choices, and its job {len(job.rows)}")
    for row, choice in zip(job.rows, choices, strict=True):
        row.check_kept(choice)
    job.outputs.cached, job.outputs.cached_tokens = True, len(job.input.prompt)
    for row, choice in zip(job.rows, choices, strict=True):
        row.adopt(choice)
