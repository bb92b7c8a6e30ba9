"""The jobs of one completion request, one for each prompt: they are submitted, cancelled when their client
has gone, and forgotten when their answer was sent.
"""

from __future__ import annotations

import asyncio

import structlog

from millstream.client.submit.submission import Outcome
from millstream.errors import MillstreamError, Unavailable
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.completions.completion_request import CompletionRequest
from millstream.gateway.context import GatewayContext
from millstream.openai.api_error import api_error
from millstream.openai.prompt_list import prompt_ids
from millstream.wire.messages.job_messages import State

_log = structlog.get_logger(__name__)


class CompletionJob:
    """`ids`: of the jobs, in the order of their prompts; empty: none is queued yet."""

    def __init__(self, gateway: GatewayContext, post: IdempotentRequest) -> None:
        self.ids: tuple[str, ...] = ()
        self.grace_s = gateway.settings.disconnect_grace_s
        self.client = gateway.clients[post.queue]
        self._gateway = gateway
        self._post = post

    @property
    def is_queued(self) -> bool:
        return bool(self.ids)

    async def submit(self, request: CompletionRequest) -> None:
        """Record the POST and submit its jobs at once. Raises what either does, when both have ended."""
        steps = self._gateway.idempotency.enter(self._post), self._submit(request)
        entered, submitted = await asyncio.gather(*steps, return_exceptions=True)
        if isinstance(submitted, BaseException):
            raise submitted
        if isinstance(entered, BaseException):  # a repeated POST could not join it
            await self._give_up()
            raise entered

    async def _submit(self, request: CompletionRequest) -> None:
        """Also for a joined POST: the gateway that began it may have died before it had submitted them."""
        # Without a stream or key nobody can fetch the result later: the job expires with the request.
        kept = request.streamed or self._post.once
        deadline_s = None if kept else self._gateway.settings.timeout_s
        names = prompt_ids(self._post.own_id, len(request.requests))
        jobs = [
            {"request": one, "id": own_id, "deadline_s": deadline_s}
            for one, own_id in zip(request.requests, names, strict=True)
        ]
        outcomes = await self.client.submit_many(jobs)  # type: ignore[arg-type]
        self.ids = tuple(one.id for one in outcomes if not isinstance(one, MillstreamError))
        await self._check(outcomes)

    async def _check(self, outcomes: list[Outcome]) -> None:
        """Raises the first refusal. What was accepted then stays for a repeated POST, or is cancelled if none
        can join.
        """
        refusals = [one for one in outcomes if isinstance(one, MillstreamError)]
        if not refusals:
            return
        if self.is_queued and not self._post.once and api_error(refusals[0]).status < 500:
            await self._give_up()
        raise refusals[0]

    async def _give_up(self) -> None:
        await self.cancel()
        self.ids = ()

    async def cancel(self) -> None:
        try:
            await self.client.cancel_many(self.ids)
        except MillstreamError as error:
            self._tell("jobs of a request not cancelled: they run to their end", error)

    async def ends_by(self, state: State) -> bool:
        """True if the request ends by a job that has ended so, and not completed: the others are cancelled.
        False for one that was cancelled because of another, whose error is to be told.
        """
        if len(self.ids) == 1:
            return True
        if state is State.CANCELLED and State.FAILED in await self.client.states(self.ids):
            return False
        await self.cancel()
        return True

    async def abandon(self) -> None:
        await self.cancel()
        self._gateway.metrics.gone.inc()

    async def forget(self) -> None:
        """Nobody can ask for the answer again: its memory is given back."""
        try:
            await self.client.forget_many(self.ids, keep_cached=True)
        except MillstreamError as error:  # they expire in time
            self._tell("answered jobs not deleted: they expire in time", error)

    def _tell(self, event: str, error: MillstreamError) -> None:
        if isinstance(error, Unavailable):
            self._gateway.redis.tell(error)
        else:
            _log.warning(event, job_id=self.ids[0], queue=self._post.queue, error=str(error))
