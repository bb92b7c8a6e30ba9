"""Sends rows of a batch run to the server, again while it is full, refuses writes or is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from redis.exceptions import ResponseError

from millstream.batch.files.journal import Journal
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import cancel_rest, outcomes_by_row, refusal_of
from millstream.batch.run.model_watch import ModelWatch
from millstream.batch.run.tally import Tally
from millstream.client.async_client import AsyncClient
from millstream.client.submit.requests import JobFields
from millstream.client.submit.submission import LONGEST_PAUSE_S, Outcome, Submitted, pause_s
from millstream.errors import MillstreamError, QueueFull, QueueMismatch, Unavailable
from millstream.openai.prompt_list import own_ids


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a run gives to a server that takes no rows now."""

    silence_s: float = 60.0  # time limit for retries while the server does not answer, or refuses writes
    again_s: float = LONGEST_PAUSE_S  # longest pause before rows are sent again, for room without limit


class LineSubmitter:
    """`full`: the queue's latest refusal, until there is room; `barred`: the server's, until it takes writes
    (its disk is full, say); `unsent`: jobs of rows that it has not accepted yet. `refused` is called for rows
    that will have no job.
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
        """Submit; the jobs by id, those of one row in the order of its prompts. Those of an earlier run are
        added to `found`.

        Raises Unavailable if the server has not answered for `Patience.silence_s`, or never, and
        InvalidRequest before anything is sent to another model than the run's.
        """
        self.unsent += _jobs_in(rows)
        left = list(rows)
        try:
            await self._models.look(client)
            self._journal.submits(client.queue, [self._own_id(row) for row in rows])
            return await self._submit(client, left, found)
        finally:
            self.unsent -= _jobs_in(left)

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
        for row, outcomes in outcomes_by_row(left, await self._outcomes(client, left, absent)):
            own_id = self._own_id(row)
            accepted = [one for one in outcomes if isinstance(one, Submitted)]
            match refusal_of(outcomes):
                case None:
                    sent.accepted(own_id)
                    jobs |= dict.fromkeys((one.id for one in accepted), row)
                    self._tally.not_durable += sum(not one.durable for one in accepted)
                    # on later tries it may be this run's own
                    found.update(one.id for one in accepted if not one.created)
                case (QueueFull() | Unavailable() | QueueMismatch()) as refusal:
                    known = not isinstance(refusal, Unavailable) or _write_refusal(refusal)
                    if own_id in absent and not accepted and known:
                        sent.refused(own_id)
                    again.append(row)
                    if isinstance(refusal, QueueMismatch):
                        mismatch = refusal
                    else:
                        refusals.append(refusal)
                case refusal:
                    self._refused(row, refusal)
                    await cancel_rest(client, [one.id for one in accepted])
        self.unsent -= _jobs_in(left) - _jobs_in(again)
        left[:] = again
        if mismatch is not None:  # no worker is new enough: a later run sends the rest
            raise mismatch
        return refusals

    async def _outcomes(
        self, client: AsyncClient, rows: Sequence[BatchLine], absent: set[str]
    ) -> list[Outcome]:
        """One for each job of each row. `absent`: the jobs that the server does not have yet."""
        try:
            outcomes = await client.submit_many(list(chain.from_iterable(map(self._fields, rows))))
        except MillstreamError as error:  # before any row was sent
            for own_id in absent:
                self._journal.sent.refused(own_id)
            if not isinstance(error, Unavailable):
                raise
            return [error] * _jobs_in(rows)
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

    def _fields(self, row: BatchLine) -> Iterator[JobFields]:
        for request, own_id in zip(row.requests, own_ids(self._own_id(row)), strict=True):
            yield {"request": request, "id": own_id}

    def _own_id(self, row: BatchLine) -> str:
        """The one name of its jobs."""
        return self._journal.own_id(row.digest, row.prompts)


def _jobs_in(rows: Sequence[BatchLine]) -> int:
    return sum(row.prompts for row in rows)


def _write_refusal(outcome: MillstreamError) -> ResponseError | None:
    """The reply of a server that answers, and takes no write now."""
    return outcome.__cause__ if isinstance(outcome.__cause__, ResponseError) else None
