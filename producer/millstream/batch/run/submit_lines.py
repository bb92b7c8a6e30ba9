"""Sends rows of a batch run to the server, again while it is full or silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.batch.files.journal import Journal
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.run.model_watch import ModelWatch
from millstream.batch.run.tally import Tally
from millstream.client.async_client import AsyncClient
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import Outcome, Submitted
from millstream.errors import MillstreamError, QueueFull, QueueMismatch, Unavailable


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a run gives to a server that takes no rows now."""

    silence_s: float = 60.0  # time limit for retries while the server does not answer
    room_s: float = 60.0  # one wait for room, repeated without limit
    again_s: float = 1.0  # before rows are sent again that found the queue full or the server silent


class LineSubmitter:
    """`full`: the queue's latest refusal, until there is room. `refused` is called for rows that will have no
    job.
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
        jobs: dict[str, BatchLine] = {}
        left = list(rows)
        silent_s: float | None = None  # since when
        first = True
        await self._models.look(client)
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
            left, silent_s = again, self._silent_since(silence, silent_s)
            await asyncio.sleep(self._patience.again_s)
            await self._models.look(client)

    async def _outcomes(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Outcome]:
        """One for each row; a server that never answered is reported at once."""
        wait_s = self._patience.room_s if self._reached else 0.0
        try:
            outcomes = await client.submit_many([self._fields(row) for row in rows], wait_s=wait_s)
        except Unavailable as error:  # before any row was sent
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
