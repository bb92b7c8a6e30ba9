"""Sends rows of a batch run to the server, again while it is full or silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from millstream.batch.files.journal import Journal
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.running.tally import Tally
from millstream.client.async_client import AsyncClient
from millstream.client.submitting.requests import JobFields
from millstream.client.submitting.submission import Outcome, Submitted
from millstream.errors import MillstreamError, QueueFull, QueueMismatch, Unavailable

SUBMIT_S = 60.0  # time limit for retries while the server does not answer
QUEUE_FULL_S = 60.0  # one wait for room, repeated without limit
AGAIN_S = 1.0  # before rows are sent again that found the queue full or the server silent


class Sending:
    """`full`: the queue's latest refusal, until there is room. `refused` is called for rows that will have no
    job.
    """

    def __init__(
        self, journal: Journal, tally: Tally, refused: Callable[[BatchLine, MillstreamError], None]
    ) -> None:
        self.full: QueueFull | None = None
        self._journal = journal
        self._tally = tally
        self._refused = refused
        self._reached = False  # the server has answered before

    async def submit(
        self, client: AsyncClient, rows: Sequence[BatchLine], found: set[str]
    ) -> dict[str, BatchLine]:
        """Submit; the jobs by id. Those of an earlier run are added to `found`.

        Raises Unavailable if the server has not answered for `SUBMIT_S`, or never.
        """
        jobs: dict[str, BatchLine] = {}
        left = list(rows)
        silent_s: float | None = None  # since when
        first = True
        self._journal.submits(client.queue, [self._own_id(row) for row in rows])
        while True:
            again, silence, full = [], None, None
            for row, outcome in zip(left, await self._outcomes(client, left), strict=True):
                match outcome:
                    case Submitted():
                        jobs[outcome.id] = row
                        self._tally.not_durable += not outcome.durable
                        if not outcome.created and first:  # on later tries it may be this run's own
                            found.add(outcome.id)
                    case QueueFull():
                        again.append(row)
                        full = outcome
                    case Unavailable():
                        again.append(row)
                        silence = outcome
                    case QueueMismatch():  # no worker is new enough: a later run sends the rest
                        raise outcome
                    case _:
                        self._refused(row, outcome)
            self.full = full
            if not again:
                return jobs
            first = False
            left, silent_s = again, self._patient(silence, silent_s)
            await asyncio.sleep(AGAIN_S)

    async def _outcomes(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Outcome]:
        """One for each row."""
        wait_s = QUEUE_FULL_S if self._reached else 0.0  # a server that never answered is reported at once
        try:
            outcomes = await client.submit_many([self._fields(row) for row in rows], wait_s=wait_s)
        except Unavailable as error:  # before any row was sent
            return [error] * len(rows)
        self._reached = True
        return outcomes

    def _patient(self, silence: Unavailable | None, since_s: float | None) -> float | None:
        """The time since when the server is silent; None if it answered. Raises `silence` after too long."""
        if silence is None:
            return None
        since_s = since_s or time.monotonic()
        if not self._reached or time.monotonic() - since_s > SUBMIT_S:
            raise silence
        return since_s

    def _fields(self, row: BatchLine) -> JobFields:
        return {**row.fields, "id": self._own_id(row)}

    def _own_id(self, row: BatchLine) -> str:
        return self._journal.own_id(row.custom_id, row.digest)
