"""The context of one request, and the middleware around the application: ids, times, the bound of requests
under way. It converts any exception to an error of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from uuid import uuid4

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.gateway.gateway_metrics import CLIENT_GONE, GatewayMetrics
from millstream.gateway.http.access_line import AccessLine, log_access
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.gateway.http.incoming_body import IncomingBody
from millstream.logs.log_setup import withheld
from millstream.openai.api_error import RETRY_S, ApiError, retry_after

_log = structlog.get_logger(__name__)
_KEY = "millstream.request"
_LONGEST_CLIENT_ID = 512


@dataclass(slots=True, eq=False)
class RequestContext:
    """`headers` are added to the response, whatever it is; `route` names it in the metrics and in the log,
    whose line also has `line`. `status` 0: no response has begun.
    """

    request_id: str
    began_s: float
    route: str = "other"
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    line: AccessLine = field(default_factory=AccessLine)

    @classmethod
    def of(cls, scope: Scope) -> RequestContext:
        context = scope[_KEY]
        assert isinstance(context, RequestContext)
        return context


class GatewayMiddleware:
    """Wraps the application. Beyond `most` requests under way it answers 503. One that has its answer, or is
    refused so, is not under way, though its body may still come.
    """

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, most: int) -> None:
        self._app = app
        self._metrics = metrics
        self._most = most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = scope[_KEY] = RequestContext(f"req_{uuid4().hex}", time.monotonic())
        client_id = Request(scope).headers.get("x-client-request-id", "")
        if client_id.isascii() and client_id.isprintable() and len(client_id) <= _LONGEST_CLIENT_ID:
            context.headers |= {"x-client-request-id": client_id} if client_id else {}
        body = IncomingBody(scope, receive)
        receive, sending = body.receive, _ResponseSender(context, send, body)
        try:
            await self._run(scope, receive, sending)
        except asyncio.CancelledError:  # the gateway is stopped, and its grace is over
            if not context.status:
                await _response(_stopped_error())(scope, receive, sending)
            raise
        except Exception as error:  # noqa: BLE001 — the last one to answer
            _tell(context, error)
            if not context.status:
                await error_answer(error, context)(scope, receive, sending)
        finally:
            self._answered(scope["method"], context)
        await sending.end()

    def _answered(self, method: str, context: RequestContext) -> None:
        seconds = time.monotonic() - context.began_s
        self._metrics.answered(context.route, context.status, seconds)
        log_access(
            context.line,
            method,
            context.route,
            context.status or CLIENT_GONE,
            seconds=round(seconds, 4),
            request_id=context.request_id,
        )

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError 503, and what the application raises."""
        if self._under_way >= self._most:
            message = f"{self._most} requests are under way already; try again"
            raise ApiError(503, message, "overloaded", headers=retry_after(RETRY_S))
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1


class _ResponseSender:
    """Sends the answer's messages, with the headers of its context. The end of one that comes before the end
    of the request's body waits for `end`, as the server closes the connection with it.
    """

    def __init__(self, context: RequestContext, send: Send, body: IncomingBody) -> None:
        self._context, self._send, self._body = context, send, body
        self._waits = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._context.status = message["status"]
            took_ms = (time.monotonic() - self._context.began_s) * 1000
            own = {"x-request-id": self._context.request_id, "openai-processing-ms": f"{took_ms:.0f}"}
            closing = {"connection": "close"} if self._body.is_left else {}
            pairs = (own | self._context.headers | closing).items()
            added = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        elif self._body.is_left and not message.get("more_body", False):
            message, self._waits = {**message, "more_body": True}, True
        await self._send(message)

    async def end(self) -> None:
        if self._waits:
            await self._body.discard()
            await self._send({"type": "http.response.body", "body": b""})


def _stopped_error() -> ApiError:
    message = "this gateway is stopped; try again: another one goes on with the request"
    return ApiError(503, message, "stopping", headers=retry_after(RETRY_S) | {"connection": "close"})


def _tell(context: RequestContext, error: Exception) -> None:
    """Tells the log of what the answer cannot say, without the error's text, which may quote a request."""
    if context.status and isinstance(error.__cause__, ApiError | MillstreamError):  # as Starlette raises it
        context.line.note(error.__cause__, breaks_off=True)
    elif not isinstance(error, ApiError):
        _log.error("request failed", request_id=context.request_id, exc_info=withheld(error))


def error_answer(error: Exception, context: RequestContext) -> Response:
    """Any exception as an answer."""
    match error:
        case ApiError() | MillstreamError():
            return _response(context.line.note(error))
        case ClientDisconnected():
            return Response(status_code=CLIENT_GONE)  # to nobody, and for the metrics
        case HTTPException():
            return _response(context.line.note(_of_routing(error)))
        case _:
            message = "the gateway failed; its log has the reason"
            return _response(context.line.note(ApiError(500, message, "internal_error")))


def _response(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, error.headers)


def _of_routing(error: HTTPException) -> ApiError:
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(404, "no such route; see ops/pages/gateway.md for those there are", "unknown_url")
    if error.status_code == 405:
        message = f"this route takes {headers.get('Allow', 'other methods')}"
        return ApiError(405, message, "method_not_allowed", headers=headers)
    return ApiError(error.status_code, error.detail, headers=headers)
