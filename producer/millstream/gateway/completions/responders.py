"""Gives a job's answer to its client: whole, or as an event stream. Both raise ClientGone when it goes."""

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
from millstream.gateway.completions.completion_request import AskedGeneration
from millstream.gateway.context import Services
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.gateway.http.api_error import NO_RETRY, ApiError, api_error, failure
from millstream.gateway.http.client_disconnect import while_there
from millstream.gateway.http.event_stream import DONE, EventStream, event
from millstream.gateway.http.request_context import Exchange
from millstream.gateway.queues.queue_clients import QueueClient
from millstream.openai.answer_body import answer_body, answer_id
from millstream.openai.chunks import Chunks
from millstream.openai.request_body import BatchEndpoint
from millstream.wire.messages.job_messages import Result

LATER_S = 5.0  # the job's own deadline is to end the wait


class Answering(ABC):
    def __init__(self, services: Services, exchange: Exchange, receive: Receive, send: Send) -> None:
        self.exchange = exchange
        self._services, self._receive, self._send = services, receive, send

    @abstractmethod
    async def give(self, asked: AskedGeneration, queue: str, job_id: str) -> None:
        """Raises ApiError, MillstreamError: an error that has been told, if the answer had begun."""


class WholeAnswer(Answering):
    async def give(self, asked: AskedGeneration, queue: str, job_id: str) -> None:
        timeout_s = self._services.settings.timeout_s + LATER_S
        wait = self._services.clients[queue].wait_ended(job_id, timeout_s)
        ended = await while_there(self._receive, wait)
        extra = {"model": asked.model}
        if asked.service_tier is not None:
            extra["service_tier"] = asked.service_tier
        run = self._services.executor.run
        try:
            body = await run(ended.record.tenant, ended.size, whole_body, ended, asked.endpoint, extra)
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
    ended: EndedJob, endpoint: BatchEndpoint, extra: Mapping[str, str | None]
) -> bytes | MillstreamError:
    """The response to a request of this job, or its error without the partial result."""
    try:
        end = ended.read()
    except ProtocolError as error:
        return error
    if isinstance(end, Result):
        return bytes(JSONResponse(answer_body(endpoint, ended.record.job_id, end) | dict(extra)).body)
    if isinstance(result := getattr(end, "result", None), Result):
        end.__dict__["result"] = result.model_copy(update={"choices": ()})
    return end


class StreamedAnswer(Answering):
    async def give(self, asked: AskedGeneration, queue: str, job_id: str) -> None:
        stream = EventStream(self._send)
        client = self._services.clients[queue]
        try:
            with self._services.metrics.streams.track_inprogress():
                work = self._tell(stream, asked, client, job_id)
                await while_there(self._receive, stream.pinged(work))
        except (MillstreamError, ApiError) as error:
            if stream.begun:
                told = error if isinstance(error, ApiError) else api_error(error)
                await stream.end(event(told.body()))
            raise
        await stream.end(DONE)  # behind the wait: the end of an answer looks like its client's departure

    async def _tell(
        self, stream: EventStream, asked: AskedGeneration, client: QueueClient, job_id: str
    ) -> None:
        chunks = Chunks(asked, answer_id(asked.endpoint, job_id), int(time.time()))
        async with aclosing(client.stream(job_id)) as events:
            await self._write_all(stream, chunks, events)
        if asked.include_usage:
            await stream.write(event(chunks.of_usage(await client.usage(job_id))))

    async def _write_all(self, stream: EventStream, chunks: Chunks, events: AsyncIterator[Event]) -> None:
        first = True
        async for one in events:
            match one:
                case TokenEvent():
                    if data := b"".join(map(event, chunks.of(one.choices))):
                        await stream.write(data)
                    if first:
                        self._services.metrics.first_event.observe(time.monotonic() - self.exchange.began_s)
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
