"""The job of one completion request: it is submitted, cancelled when its client has gone, and forgotten when
its answer was sent.
"""

from __future__ import annotations

import asyncio

import structlog

from millstream.errors import MillstreamError, Unavailable
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.completions.completion_request import CompletionRequest
from millstream.gateway.context import GatewayContext

_log = structlog.get_logger(__name__)


class CompletionJob:
    """`id` None: it is not queued yet."""

    def __init__(self, gateway: GatewayContext, post: IdempotentRequest) -> None:
        self.id: str | None = None
        self.grace_s = gateway.settings.disconnect_grace_s
        self._gateway = gateway
        self._post = post
        self._client = gateway.clients[post.queue]

    @property
    def is_queued(self) -> bool:
        return self.id is not None

    async def submit(self, request: CompletionRequest) -> str:
        """Record the POST and submit its job at once. Raises what either does, when both have ended."""
        steps = self._gateway.idempotency.enter(self._post), self._submit(request)
        entered, submitted = await asyncio.gather(*steps, return_exceptions=True)
        if isinstance(submitted, BaseException):
            raise submitted
        self.id = submitted
        if isinstance(entered, BaseException):
            await self.cancel()  # a repeated POST could not join it
            self.id = None
            raise entered
        return submitted

    async def _submit(self, request: CompletionRequest) -> str:
        """Also for a joined POST: the gateway that began it may have died before it had submitted the job."""
        # Without a stream or key nobody can fetch the result later: the job expires with the request.
        kept = request.streamed or self._post.once
        deadline_s = None if kept else self._gateway.settings.timeout_s
        job = {"request": request.request, "id": self._post.own_id, "deadline_s": deadline_s}
        [outcome] = await self._client.submit_many([job])  # type: ignore[list-item]
        if isinstance(outcome, MillstreamError):
            raise outcome
        return outcome.id

    async def cancel(self) -> None:
        assert self.id is not None
        try:
            await self._client.cancel(self.id)
        except MillstreamError as error:
            self._tell("job whose client has gone not cancelled: it runs to its end", error)

    async def abandon(self) -> None:
        await self.cancel()
        self._gateway.metrics.gone.inc()

    async def forget(self) -> None:
        """Nobody can ask for the answer again: its memory is given back."""
        if self.id is None:
            return
        try:
            await self._client.forget(self.id, keep_cached=True)
        except MillstreamError as error:  # it expires in time
            self._tell("answered job not deleted: it expires in time", error)

    def _tell(self, event: str, error: MillstreamError) -> None:
        if isinstance(error, Unavailable):
            self._gateway.redis.tell(error)
        else:
            _log.warning(event, job_id=self.id, queue=self._post.queue, error=str(error))
