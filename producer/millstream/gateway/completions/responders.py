"""Sends a job's answer to its client: whole, or as an event stream. Both raise ClientDisconnected."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send

from millstream.client.session.ended_job import EndedJob
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent
from millstream.errors import MillstreamError, ProtocolError
from millstream.gateway.completions.completion_request import CompletionRequest
from millstream.gateway.context import GatewayContext
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.gateway.http.client_disconnect import until_disconnect
from millstream.gateway.http.event_stream import DONE, EventStream, event
from millstream.gateway.http.request_context import RequestContext
from millstream.gateway.queues.queue_clients import QueueClient
from millstream.openai.answer_body import answer_body, answer_id
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import NO_RETRY, ApiError, api_error, failure
from millstream.openai.chunks import Chunks
from millstream.wire.messages.job_messages import Result

LATER_S = 5.0  # the job's own deadline is to end the wait


class Responder(ABC):
    def __init__(
        self, gateway: GatewayContext, context: RequestContext, receive: Receive, send: Send
    ) -> None:
        self.context = context
        self._gateway, self._receive, self._send = gateway, receive, send

    @abstractmethod
    async def respond(self, request: CompletionRequest, queue: str, job_id: str) -> None:
        """Raises ApiError, MillstreamError; if the response has begun, the client already has the error."""


class WholeResponder(Responder):
    async def respond(self, request: CompletionRequest, queue: str, job_id: str) -> None:
        timeout_s = self._gateway.settings.timeout_s + LATER_S
        wait = self._gateway.clients[queue].wait_ended(job_id, timeout_s)
        ended = await until_disconnect(self._receive, wait)
        run = self._gateway.executor.run
        try:
            body = await run(
                ended.record.tenant, ended.size, whole_body, ended, request.endpoint, request.named
            )
        except UnexpectedError as error:
            message = f"reading the stored answer {error}"
            raise ApiError(500, message, "unreadable", headers=NO_RETRY) from None
        if not isinstance(body, bytes):
            raise body
        await self._send_json(body)

    async def _send_json(self, body: bytes) -> None:
        response = Response(body, media_type="application/json")
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": response.body})


def whole_body(
    ended: EndedJob, endpoint: ApiEndpoint, named: Mapping[str, str | None]
) -> bytes | MillstreamError:
    """The response to a request of this job, or its error without the partial result."""
    try:
        end = ended.read()
    except ProtocolError as error:
        return error
    if isinstance(end, Result):
        return bytes(JSONResponse(answer_body(endpoint, ended.record.job_id, end) | dict(named)).body)
    if isinstance(result := getattr(end, "result", None), Result):
        end.__dict__["result"] = result.model_copy(update={"choices": ()})
    return end


class StreamResponder(Responder):
    async def respond(self, request: CompletionRequest, queue: str, job_id: str) -> None:
        stream = EventStream(self._send)
        client = self._gateway.clients[queue]
        try:
            with self._gateway.metrics.streams.track_inprogress():
                work = self._tell(stream, request, client, job_id)
                await until_disconnect(self._receive, stream.pinged(work))
        except (MillstreamError, ApiError) as error:
            if stream.begun:
                told = error if isinstance(error, ApiError) else api_error(error)
                await stream.end(event(told.body()))
            raise
        await stream.end(DONE)  # behind the wait: the end of an answer looks like its client's departure

    async def _tell(
        self, stream: EventStream, request: CompletionRequest, client: QueueClient, job_id: str
    ) -> None:
        head = {"id": answer_id(request.endpoint, job_id), "created": int(time.time()), **request.named}
        chunks = Chunks(
            request.endpoint, head, may_call=request.may_call, include_usage=request.include_usage
        )
        async with aclosing(client.stream(job_id)) as events:
            await self._write_all(stream, chunks, events)
        if request.include_usage:
            await stream.write(event(chunks.of_usage(await client.usage(job_id))))

    async def _write_all(self, stream: EventStream, chunks: Chunks, events: AsyncIterator[Event]) -> None:
        first = True
        async for one in events:
            match one:
                case TokenEvent():
                    if data := b"".join(map(event, chunks.of(one.choices))):
                        await stream.write(data)
                    if first:
                        self._gateway.metrics.first_event.observe(time.monotonic() - self.context.began_s)
                        first = False
                case RewindEvent():
                    message = (
                        "this answer begins anew: the queue's server lost a part of it, or another model has "
                        "the queue now; send the request again"
                    )
                    raise ApiError(500, message, "stream_rewound", headers=NO_RETRY)
                case EndEvent():
                    if one.error is not None:
                        raise failure(one.error)
                    one.raise_for_state()
