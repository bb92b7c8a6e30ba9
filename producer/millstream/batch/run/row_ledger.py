"""Where the rows of a run are kept. One form writes files (`FileLedger`), one the parts of a store (the
gateway's `StoreLedger`); `LineRun` runs lines over either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Generic, TypeVar

from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import LineJobs
from millstream.client.async_client import AsyncClient
from millstream.client.submit.submission import Outcome, Submitted
from millstream.errors import Conflict, MillstreamError, QueueFull, QueueMismatch, Unavailable

C = TypeVar("C", bound=AsyncClient)
E = TypeVar("E")  # the end of a job
P = TypeVar("P")  # where a row with an answer is kept
Refusal = QueueFull | Unavailable | QueueMismatch  # for now


class RowLedger(ABC, Generic[C, E, P]):
    """Any method may raise what ends the run: rows that are not written then are left to a later run."""

    @abstractmethod
    def client_of(self, queue: str) -> C:
        """Returns the queue's client, which knows the queue's shape and how fast it empties."""

    def has_job(self, row: BatchLine) -> bool:
        """Returns True if an earlier run has submitted the line, as far as this one knows."""
        return False

    async def load(self, row: BatchLine) -> BatchLine | MillstreamError:
        """Returns a row with `late_bytes` as it is sent, with what it was without, and itself as `light`; or
        the reason why it is never sent.
        """
        return row

    @abstractmethod
    async def submit(self, client: C, rows: Sequence[BatchLine]) -> list[Outcome]:
        """Submits each row's jobs once. Returns an outcome for each job."""

    @abstractmethod
    def takes(self, row: BatchLine, taken: Sequence[Submitted | Conflict]) -> None:
        """Records that the queue has the row's jobs. A conflict is with the line's job as another version
        has encoded it.
        """

    def waits(self, row: BatchLine, refusal: Refusal, taken: Sequence[Submitted | Conflict]) -> None:
        """Records that the queue does not have all of the row's jobs."""

    @abstractmethod
    async def pause(self, client: C, refusals: Sequence[Refusal]) -> None:
        """Waits before rows are sent again that were refused so."""

    @abstractmethod
    async def refuse(self, row: BatchLine, refusal: MillstreamError) -> None:
        """Writes the error row of a line that the queue never takes."""

    @abstractmethod
    def ended(self, client: C, job_ids: Sequence[str]) -> AsyncGenerator[tuple[str, E]]:
        """Yields jobs as they end."""

    @abstractmethod
    def fails_line(self, end: E) -> bool:
        """Returns True if the other jobs of the line need not run any more."""

    @abstractmethod
    async def repeats(self, client: C, line: LineJobs[E], *, again: bool) -> bool:
        """Returns True, only with `again`, if a line that has ended is to be submitted again."""

    @abstractmethod
    async def end(self, client: C, line: LineJobs[E]) -> P | None:
        """Writes the row of a line. Returns its place if equal lines may have its answer."""

    @abstractmethod
    async def answer_at(self, place: P) -> Any:
        """Returns the row there; None if it is not there any more."""

    @abstractmethod
    async def reuse(self, row: BatchLine, answer: Any) -> bool:
        """Writes the row of a line that has an equal one's answer. False if it cannot be made."""
