"""Sends rows of a batch run to the server, again while it is full, refuses writes or is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis.exceptions import ResponseError

from millstream.batch.files.journal import Journal
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.run.model_watch import ModelWatch
from millstream.batch.run.tally import Tally
from millstream.client.async_client import AsyncClient
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import LONGEST_PAUSE_S, Outcome, Submitted, pause_s
from millstream.errors import MillstreamError, QueueFull, QueueMismatch, Unavailable


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a run gives to a server that takes no rows now."""

    silence_s: float = 60.0  # time limit for retries while the server does not answer, or refuses writes
    again_s: float = LONGEST_PAUSE_S  # longest pause before rows are sent again, for room without limit


class LineSubmitter:
    """`full`: the queue's latest refusal, until there is room; `barred`: the server's, until it takes writes
    (its disk is full, say); `unsent`: rows that it has not accepted yet. `refused` is called for rows that
    will have no job.
    """

    def __init__(
        self,
        journal: Journal,
        tally: Tally,
        models: ModelWatch,
        refused: Callable[[BatchLine, MillstreamError], None],
        patience: Patience,
    ) -> None:
        self.full: QueueFull | None = None
        self.barred: ResponseError | None = None
        self.unsent = 0
        self._journal = journal
        self._tally = tally
        self._models = models
        self._refused = refused
        self._patience = patience
        self._reached = False  # the server has answered before

    async def submit(
        self, client: AsyncClient, rows: Sequence[BatchLine], found: set[str]
    ) -> dict[str, BatchLine]:
        """Submit; the jobs by id. Those of an earlier run are added to `found`.

        Raises Unavailable if the server has not answered for `Patience.silence_s`, or never, and
        InvalidRequest before anything is sent to another model than the run's.
        """
        self.unsent += len(rows)
        left = list(rows)
        try:
            await self._models.look(client)
            self._journal.submits(client.queue, [self._own_id(row) for row in rows])
            return await self._submit(client, left, found)
        finally:
            self.unsent -= len(left)

    async def _submit(
        self, client: AsyncClient, left: list[BatchLine], found: set[str]
    ) -> dict[str, BatchLine]:
        """Takes rows out of `left` as the server has them."""
        jobs: dict[str, BatchLine] = {}
        silent_s: float | None = None  # since when
        first = True
        while True:
            refusals = await self._send(client, left, jobs, found if first else set())
            self.full = next((one for one in refusals if isinstance(one, QueueFull)), None)
            self.barred = next(filter(None, map(_write_refusal, refusals)), None)
            if not left:
                return jobs
            first = False
            silence = next((one for one in refusals if isinstance(one, Unavailable)), None)
            silent_s = self._silent_since(silence, silent_s)
            await asyncio.sleep(min(pause_s(refusals), self._patience.again_s))
            await self._models.look(client)

    async def _send(
        self, client: AsyncClient, left: list[BatchLine], jobs: dict[str, BatchLine], found: set[str]
    ) -> list[QueueFull | Unavailable]:
        """Send once; the refusals of rows that stay in `left`."""
        again: list[BatchLine] = []
        refusals: list[QueueFull | Unavailable] = []
        mismatch: QueueMismatch | None = None
        sent = self._journal.sent
        absent = sent.sends([self._own_id(row) for row in left])
        for row, outcome in zip(left, await self._outcomes(client, left, absent), strict=True):
            own_id = self._own_id(row)
            match outcome:
                case Submitted():
                    sent.accepted(own_id)
                    jobs[outcome.id] = row
                    self._tally.not_durable += not outcome.durable
                    if not outcome.created:  # on later tries it may be this run's own
                        found.add(outcome.id)
                case QueueFull() | Unavailable() | QueueMismatch():
                    if own_id in absent and (not isinstance(outcome, Unavailable) or _write_refusal(outcome)):
                        sent.refused(own_id)
                    again.append(row)
                    if isinstance(outcome, QueueMismatch):
                        mismatch = outcome
                    else:
                        refusals.append(outcome)
                case _:
                    self._refused(row, outcome)
        self.unsent -= len(left) - len(again)
        left[:] = again
        if mismatch is not None:  # no worker is new enough: a later run sends the rest
            raise mismatch
        return refusals

    async def _outcomes(
        self, client: AsyncClient, rows: Sequence[BatchLine], absent: set[str]
    ) -> list[Outcome]:
        """One for each row. `absent`: the jobs that the server does not have yet."""
        try:
            outcomes = await client.submit_many([self._fields(row) for row in rows])
        except MillstreamError as error:  # before any row was sent
            for own_id in absent:
                self._journal.sent.refused(own_id)
            if not isinstance(error, Unavailable):
                raise
            return [error] * len(rows)
        self._reached = True
        return outcomes

    def _silent_since(self, silence: Unavailable | None, since_s: float | None) -> float | None:
        """The time since when the server is silent; None if it answered. Raises `silence` after too long."""
        if silence is None:
            return None
        since_s = since_s or time.monotonic()
        if not self._reached or time.monotonic() - since_s > self._patience.silence_s:
            raise silence
        return since_s

    def _fields(self, row: BatchLine) -> JobFields:
        return {"request": row.request, "id": self._own_id(row)}

    def _own_id(self, row: BatchLine) -> str:
        return self._journal.own_id(row.digest)


def _write_refusal(outcome: MillstreamError) -> ResponseError | None:
    """The reply of a server that answers, and takes no write now."""
    return outcome.__cause__ if isinstance(outcome.__cause__, ResponseError) else None
