"""Gives a job's answer to its client: whole, or as an event stream. Both raise ClientGone when it goes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Send

from millstream.batch.bodies.answer_body import answer_body, answer_id
from millstream.client.async_client import AsyncClient
from millstream.client.streaming.events import EndEvent, Event, RewindEvent, TokenEvent
from millstream.errors import MillstreamError
from millstream.gateway.generating.asked_generation import AskedGeneration
from millstream.gateway.generating.chunks import Chunks
from millstream.gateway.services.services import Services
from millstream.gateway.web.api_error import NO_RETRY, ApiError, api_error, failure
from millstream.gateway.web.departure import while_there
from millstream.gateway.web.event_stream import DONE, EventStream, event
from millstream.gateway.web.exchange import Exchange

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
        wait = self._services.clients[queue].wait(job_id, timeout_s)
        result = await while_there(self._receive, wait)
        body = answer_body(asked.endpoint, job_id, result) | {"model": asked.model}
        if asked.service_tier is not None:
            body["service_tier"] = asked.service_tier
        await self._send_json(body)

    async def _send_json(self, body: dict[str, Any]) -> None:
        response = JSONResponse(body)
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": response.body})


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
        self, stream: EventStream, asked: AskedGeneration, client: AsyncClient, job_id: str
    ) -> None:
        chunks = Chunks(asked, answer_id(asked.endpoint, job_id), int(time.time()))
        async with aclosing(client.stream(job_id)) as events:
            await self._write_all(stream, chunks, events)
        if asked.include_usage:
            result = await client.result(job_id)
            await stream.write(event(chunks.of_usage(result.usage)))

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
