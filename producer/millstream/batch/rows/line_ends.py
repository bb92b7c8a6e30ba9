"""Collects what becomes of a line's jobs, one for each of its prompts: the line ends when all have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from millstream.batch.rows.batch_lines import BatchLine
from millstream.client.async_client import AsyncClient
from millstream.client.submit.submission import Outcome, Submitted
from millstream.errors import (
    Conflict,
    JobError,
    JobFailed,
    MillstreamError,
    QueueFull,
    QueueMismatch,
    Unavailable,
)
from millstream.openai.prompt_list import error_of_prompt, joined_result
from millstream.wire.messages.job_messages import Result

E = TypeVar("E")


@dataclass(slots=True, eq=False)
class LineJobs(Generic[E]):
    """The jobs of one line, in the order of its prompts, and the ends of those that have ended."""

    row: BatchLine
    ids: list[str] = field(default_factory=list)
    by_id: dict[str, E] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """Returns the jobs that have not ended."""
        return [job_id for job_id in self.ids if job_id not in self.by_id]

    @property
    def ends(self) -> list[E]:
        """Returns the ends of all, when they have ended."""
        return [self.by_id[job_id] for job_id in self.ids]


class LineEnds(Generic[E]):
    """Mutable. `jobs`: rows by job id, those of one row in the order of its prompts."""

    def __init__(self, jobs: Mapping[str, BatchLine]) -> None:
        lines: dict[int, LineJobs[E]] = {}
        self._lines = {job_id: lines.setdefault(row.line, LineJobs(row)) for job_id, row in jobs.items()}
        for job_id, line in self._lines.items():
            line.ids.append(job_id)

    def end(self, job_id: str, end: E) -> LineJobs[E]:
        """Returns the line of a job that has ended so."""
        line = self._lines.pop(job_id)
        line.by_id[job_id] = end
        return line


def outcomes_by_row(
    rows: Iterable[BatchLine], outcomes: Iterable[Outcome]
) -> Iterator[tuple[BatchLine, list[Outcome]]]:
    """The rows, each with the outcomes of its jobs. `outcomes`: of all jobs, in their order."""
    left = iter(outcomes)
    for row in rows:
        yield row, list(islice(left, row.prompts))


def refusal_of(outcomes: Iterable[Outcome]) -> MillstreamError | None:
    """The reason why a line was not accepted, first of all one for good; None: all of its jobs were. A
    conflict is with the line's own job, as another version has encoded it.
    """
    refusals = [one for one in outcomes if isinstance(one, MillstreamError) and not isinstance(one, Conflict)]
    lasting = [one for one in refusals if not isinstance(one, QueueFull | Unavailable | QueueMismatch)]
    return next(iter(lasting + refusals), None)


def job_id_of_taken(outcome: Submitted | Conflict) -> str:
    """The job's id, whoever has submitted it."""
    return outcome.id if isinstance(outcome, Submitted) else outcome.job_id


async def cancel_rest(client: AsyncClient, job_ids: Sequence[str]) -> None:
    """Cancels the other jobs of a line that has an error."""
    with contextlib.suppress(MillstreamError):  # they run to their ends
        await client.cancel_many(job_ids)


def joined_end(ends: Sequence[Result | JobError]) -> Result | JobError:
    """The end of a line. The failure of a prompt is the line's: the others were cancelled because of it."""
    results = [end for end in ends if isinstance(end, Result)]
    if len(results) == len(ends):
        return joined_result(results)
    for place, end in enumerate(ends):
        if isinstance(end, JobFailed):
            return _of_prompt(end, place, len(ends))
    return next(end for end in ends if isinstance(end, JobError))


def _of_prompt(end: JobFailed, place: int, prompts: int) -> JobFailed:
    if prompts == 1 or not isinstance(result := end.result, Result) or result.error is None:
        return end
    error = error_of_prompt(result.error, place, prompts)
    return JobFailed(end.job_id, error.code, error.message, result.model_copy(update={"error": error}))
