"""POST /v1/chat/completions and /v1/completions: from a body to a job of the queue, and to its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from millstream.client.submit.requests import own_id_of
from millstream.errors import JobExpired, MillstreamError, NotReady
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.idempotency import Post
from millstream.gateway.completions.completion_request import AskedGeneration, read_generation
from millstream.gateway.completions.responders import Answering, StreamedAnswer, WholeAnswer
from millstream.gateway.context import Services
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.gateway.http.api_error import NO_RETRY, RETRY_S, ApiError, api_error, retry_after, timeout
from millstream.gateway.http.client_disconnect import ClientGone
from millstream.gateway.http.json_body import body_of
from millstream.gateway.http.request_context import Exchange
from millstream.gateway.queues.queue_directory import ServedQueue
from millstream.gateway.redis.gateway_calls import PostEnd
from millstream.openai.request_body import BatchEndpoint
from millstream.wire.keys import Lane

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationEndpoint:
    """An ASGI application: it listens for the client's departure itself."""

    endpoint: BatchEndpoint
    services: Services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        exchange.route = self.endpoint
        http = HttpRequest(scope, receive)
        try:
            caller = await self.services.callers.identify(http)
            raw = await body_of(http, self.services.settings.max_body_bytes)
            asked, served = await self._read(raw, caller)
            posts = self.services.posts
            own_id = own_id_of(asked.request.kept_digest, served.shards)
            post = await posts.begin(caller.tenant, self.endpoint, raw, served.queue, http.headers, own_id)
            if post.joined:
                self.services.metrics.joined.inc()
            with posts.attended(post):
                kind = StreamedAnswer if asked.streamed else WholeAnswer
                await self._carry_out(caller, asked, post, kind(self.services, exchange, receive, send))
        except ClientGone:
            return
        except (ApiError, MillstreamError):
            if not exchange.status:
                raise  # else the stream has told it

    async def _read(self, raw: bytes, caller: ApiKey) -> tuple[AskedGeneration, ServedQueue]:
        directory, run = self.services.directory, self.services.executor.run
        try:
            asked = await run(caller.tenant, len(raw), read_generation, raw, self.endpoint, caller)
        except UnexpectedError as error:
            message = f"reading this request {error}"
            raise ApiError(400, message, "unreadable_request", headers=NO_RETRY) from None
        if isinstance(asked, ApiError):
            raise asked
        if asked.model is None:
            seen = await directory.seen_by(caller)
            if len(seen) != 1:
                names = ", ".join(one.queue for one in seen)
                raise ApiError(400, f"model: missing; give one of {names}", "missing_field", "model")
            [served] = seen
            asked = replace(asked, model=served.queue)
        else:
            served = await directory.find(asked.model, caller)
        if not served.workers and asked.request.lane is Lane.INTERACTIVE:
            message = f'no worker serves {served.queue!r} now; try again, or wait with "service_tier": "flex"'
            raise ApiError(503, message, "no_worker", headers=retry_after(RETRY_S))
        return asked, served

    async def _carry_out(
        self, caller: ApiKey, asked: AskedGeneration, post: Post, answering: Answering
    ) -> None:
        """Queue the job and give its answer; says what has become of the POST, however it ends."""
        job_id = None
        try:
            async with self._charged(caller, asked, post, answering.exchange):
                job_id = await self._queue(asked, post)
                await answering.give(asked, post.queue, job_id)
        except ClientGone:
            await self._after_departure(post, job_id)
            raise
        except asyncio.CancelledError:  # the gateway is stopped
            await self._end(post, PostEnd.LEFT)
            raise
        except Exception as error:
            await self._after_failure(post, job_id, error)
            raise self._told(error) from error
        if await self._end(post, PostEnd.ANSWERED) and job_id is not None:
            await self._forget(post, job_id)

    def _charged(
        self, caller: ApiKey, asked: AskedGeneration, post: Post, exchange: Exchange
    ) -> contextlib.AbstractAsyncContextManager[None]:
        if post.joined:
            return contextlib.nullcontext()
        return self.services.allowances.charged(caller, post.own_id, asked.request.cost, exchange.headers)

    async def _queue(self, asked: AskedGeneration, post: Post) -> str:
        """Enter the POST and submit its job at once. Raises what either does, when both have ended."""
        steps = self.services.posts.enter(post), self._submit(asked, post)
        entered, submitted = await asyncio.gather(*steps, return_exceptions=True)
        if isinstance(submitted, BaseException):
            raise submitted
        if isinstance(entered, BaseException):
            await self._cancel(post, submitted)  # a repeated POST could not join it
            raise entered
        return submitted

    async def _submit(self, asked: AskedGeneration, post: Post) -> str:
        """Also for a joined POST: the gateway that began it may have died before it had submitted the job."""
        client = self.services.clients[post.queue]
        # A job that nobody can ask for again ends with the wait for it, also if this gateway ends before.
        deadline_s = None if asked.streamed or post.once else self.services.settings.timeout_s
        job = {"request": asked.request, "id": post.own_id, "deadline_s": deadline_s}
        [outcome] = await client.submit_many([job])  # type: ignore[list-item]
        if isinstance(outcome, MillstreamError):
            raise outcome
        return outcome.id

    def _told(self, error: Exception) -> Exception:
        if isinstance(error, JobExpired | NotReady):  # the deadline was the gateway's
            return timeout(self.services.settings.timeout_s)
        return error

    async def _after_failure(self, post: Post, job_id: str | None, error: Exception) -> None:
        told = api_error(error) if isinstance(error, MillstreamError) else error
        if not isinstance(told, ApiError) or told.status >= 500:
            ours = await self._end(post, PostEnd.LEFT)
            if ours and isinstance(error, NotReady) and job_id is not None:
                await self._cancel(post, job_id)
        elif job_id is not None:
            await self._end(post, PostEnd.ANSWERED)
        else:
            with contextlib.suppress(MillstreamError):
                await self.services.posts.withdraw(post)

    async def _after_departure(self, post: Post, job_id: str | None) -> None:
        """Cancel the job after the grace, unless a repeated POST has joined it."""
        if not await self._end(post, PostEnd.LEFT) or job_id is None:
            return
        await asyncio.sleep(self.services.settings.disconnect_grace_s)
        if await self._end(post, PostEnd.ABANDONED):
            await self._cancel(post, job_id)
            self.services.metrics.gone.inc()

    async def _end(self, post: Post, how: PostEnd) -> bool:
        try:
            return await self.services.posts.end(post, how)
        except MillstreamError as error:  # its entry counts as left when the lease is over
            log.warning("the end of a request was not stored: %s", error)
            return False

    async def _cancel(self, post: Post, job_id: str) -> None:
        try:
            await self.services.clients[post.queue].cancel(job_id)
        except MillstreamError as error:
            log.warning("a job whose client has gone was not cancelled: %s", error)

    async def _forget(self, post: Post, job_id: str) -> None:
        """Nobody can ask for the answer again: its memory is given back."""
        try:
            await self.services.clients[post.queue].forget(job_id, keep_cached=True)
        except MillstreamError as error:  # it expires in time
            log.warning("an answered job was not deleted: %s", error)
