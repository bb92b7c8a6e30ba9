"""POST /v1/chat/completions and /v1/completions: from a body to a job of the queue, and to its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from millstream.client.submit.requests import own_id_of
from millstream.errors import JobExpired, MillstreamError, NotReady, QueueMismatch
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.idempotency import IdempotentRequest
from millstream.gateway.auth.rate_limits import Charge
from millstream.gateway.completions.completion_job import CompletionJob
from millstream.gateway.completions.completion_request import (
    CompletionRequest,
    read_completion,
    reading_size,
)
from millstream.gateway.completions.responders import Responder, StreamResponder, WholeResponder
from millstream.gateway.context import GatewayContext
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.gateway.http.json_body import body_of
from millstream.gateway.http.request_context import RequestContext
from millstream.gateway.queues.queue_directory import ServedQueue
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import NO_RETRY, RETRY_S, ApiError, retry_after, timeout
from millstream.openai.fields.field_check import ignored_header
from millstream.openai.unsupported_field import ImagesNotSupported
from millstream.wire.keys import Lane
from millstream.wire.state.heartbeat import text_only_model


@dataclass(frozen=True, slots=True)
class CompletionRoute:
    """An ASGI application: it listens for the client's disconnect itself."""

    endpoint: ApiEndpoint
    gateway: GatewayContext

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        context.route = self.endpoint
        http = HttpRequest(scope, receive)
        try:
            caller = await self.gateway.authenticator.identify(http)
            context.line.tenant = caller.tenant or None
            raw = await body_of(http, self.gateway.settings.max_body_bytes)
            request, served = await self._read(raw, caller, context)
            own_id = own_id_of(request.first.kept_digest, served.shards)
            post = await self.gateway.idempotency.begin(
                caller, self.endpoint, raw, served.queue, http.headers, own_id
            )
            if post.joined:
                self.gateway.metrics.joined.inc()
            kind = StreamResponder if request.streamed else WholeResponder
            await self._answer(caller, request, post, kind(self.gateway, context, receive, send))
        except ClientDisconnected:
            return
        except (ApiError, MillstreamError) as error:
            if not context.status:
                raise
            context.line.note(error)  # the client already has it

    async def _read(
        self, raw: bytes, caller: ApiKey, context: RequestContext
    ) -> tuple[CompletionRequest, ServedQueue]:
        directory, run = self.gateway.directory, self.gateway.executor.run
        try:
            size = reading_size(raw, self.endpoint)
            request = await run(caller.tenant, size, read_completion, raw, self.endpoint, caller)
        except UnexpectedError as error:
            message = f"reading this request {error}"
            raise ApiError(400, message, "unreadable_request", headers=NO_RETRY) from None
        if isinstance(request, ApiError):
            raise request
        context.headers |= ignored_header(request.ignored)
        self.gateway.metrics.count_ignored(request.ignored)
        await directory.own_loaded(self.gateway.settings.timeout_s)
        if request.model is None:
            seen = await directory.seen_by(caller)
            if len(seen) != 1:
                names = ", ".join(one.queue for one in seen)
                raise ApiError(400, f"model: missing; give one of {names}", "missing_field", "model")
            [served] = seen
            request = replace(request, model=served.queue)
        else:
            served = await directory.find(request.model, caller)
        if not served.workers and request.first.lane is Lane.INTERACTIVE:
            message = f'no worker serves {served.queue!r} now; try again, or wait with "service_tier": "flex"'
            raise ApiError(503, message, "no_worker", headers=retry_after(RETRY_S))
        if served.workers and not served.takes(request.first.version):
            raise QueueMismatch(f"no worker of {served.queue!r} takes version {request.first.version}")
        if request.first.images and (model := text_only_model(served.workers)):
            raise ImagesNotSupported(request.first.images, model)
        return request, served

    async def _answer(
        self, caller: ApiKey, request: CompletionRequest, post: IdempotentRequest, responder: Responder
    ) -> None:
        job, limits = CompletionJob(self.gateway, post), self.gateway.rate_limits
        charge = Charge(caller, post, request.cost, len(request.requests))
        try:
            async with self.gateway.idempotency.tracked(post, job):
                await limits.charge(charge, responder.context.headers)
                await job.submit(request)
                responder.context.line.queue, responder.context.line.job_id = post.queue, job.ids[0]
                await responder.respond(request, job)
                await limits.settle(charge)
        except (JobExpired, NotReady) as error:  # the deadline was the gateway's
            raise timeout(self.gateway.settings.timeout_s) from error
        finally:
            await limits.settle(charge)
