"""Sends the answer of a request's jobs to its client: whole, or as an event stream. Both raise
ClientDisconnected. The error of one job is that of the request, and the others are cancelled.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Send

from millstream.client.session.ended_job import EndedJob
from millstream.client.streaming.events import EndEvent, RewindEvent, TokenEvent
from millstream.errors import JobError, JobFailed, MillstreamError, ProtocolError
from millstream.gateway.completions.completion_job import CompletionJob
from millstream.gateway.completions.completion_request import CompletionRequest
from millstream.gateway.context import GatewayContext
from millstream.gateway.cpu_executor import UnexpectedError
from millstream.gateway.http.client_disconnect import until_disconnect
from millstream.gateway.http.event_stream import DONE, EventStream, event
from millstream.gateway.http.request_context import RequestContext
from millstream.openai.answer_body import answer_body, answer_id, schema_error_of
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import NO_RETRY, ApiError, api_error, failure
from millstream.openai.chunks import Chunks
from millstream.openai.prompt_list import error_as_sent, joined_result
from millstream.wire.messages.job_messages import Result, State

LATER_S = 5.0  # the jobs' own deadline is to end the wait
LEAST_BYTES = 512  # that the reading of a result counts as


class Responder(ABC):
    def __init__(
        self, gateway: GatewayContext, context: RequestContext, receive: Receive, send: Send
    ) -> None:
        self.context = context
        self._gateway, self._receive, self._send = gateway, receive, send

    @abstractmethod
    async def respond(self, request: CompletionRequest, job: CompletionJob) -> None:
        """Raises ApiError, MillstreamError; if the response has begun, the client already has the error."""


class WholeResponder(Responder):
    async def respond(self, request: CompletionRequest, job: CompletionJob) -> None:
        ends = await until_disconnect(self._receive, self._ended(job))
        tenant, size = ends[0].record.tenant, sum(max(LEAST_BYTES, end.size) for end in ends)
        run = self._gateway.executor.run
        try:
            body = await run(
                tenant, size, whole_body, job.ids, ends, request.endpoint, request.named, request.sent
            )
        except UnexpectedError as error:
            message = f"reading the stored answer {error}"
            raise ApiError(500, message, "unreadable", headers=NO_RETRY) from None
        if not isinstance(body, WholeBody):
            raise body
        response = Response(body.data, media_type="application/json", headers=body.headers)
        await response({"type": "http"}, self._receive, self._send)

    async def _ended(self, job: CompletionJob) -> list[EndedJob]:
        """The jobs when all have ended, or the one that was not completed. Raises NotFound, NotReady."""
        timeout_s = self._gateway.settings.timeout_s + LATER_S
        found: dict[str, EndedJob] = {}
        async with aclosing(job.client.ended(job.ids, timeout_s)) as ended:
            async for job_id, end in ended:
                if isinstance(end, JobError):
                    raise end
                if end.record.state is not State.COMPLETED and await job.ends_by(end.record.state):
                    return [end]
                found[job_id] = end
        return [found[job_id] for job_id in job.ids]


class WholeBody(NamedTuple):
    data: bytes
    headers: dict[str, str]


def whole_body(
    job_ids: Sequence[str],
    ends: Sequence[EndedJob],
    endpoint: ApiEndpoint,
    named: Mapping[str, str | None],
    sent: Mapping[str, str],
) -> WholeBody | MillstreamError | ApiError:
    """The response to a request of these jobs, or the error of one without the partial result."""
    results = []
    for ended in ends:
        try:
            end = ended.read()
        except ProtocolError as error:
            return error
        if not isinstance(end, Result):
            return _error_of(end, sent, job_ids.index(ended.record.job_id), len(job_ids))
        results.append(end)
    result = joined_result(results)
    body = answer_body(endpoint, job_ids[0], result)
    headers = {"x-millstream-schema": "partial"} if schema_error_of(result) else {}
    return WholeBody(bytes(JSONResponse(body | dict(named)).body), headers)


def _error_of(end: JobError, sent: Mapping[str, str], place: int, prompts: int) -> JobError | ApiError:
    result = getattr(end, "result", None)
    if not isinstance(result, Result):
        return end
    if isinstance(end, JobFailed) and result.error is not None:
        return failure(error_as_sent(result.error, sent, place, prompts))
    end.__dict__["result"] = result.model_copy(update={"choices": ()})
    return end


class StreamResponder(Responder):
    _first = True  # no token has come yet

    async def respond(self, request: CompletionRequest, job: CompletionJob) -> None:
        stream = EventStream(self._send)
        try:
            with self._gateway.metrics.streams.track_inprogress():
                work = self._tell(stream, request, job)
                await until_disconnect(self._receive, stream.pinged(work))
        except (MillstreamError, ApiError) as error:
            if stream.begun:
                told = error if isinstance(error, ApiError) else api_error(error)
                await stream.end(event(told.body()))
            raise
        await stream.end(DONE)  # behind the wait: the end of an answer looks like its client's departure

    async def _tell(self, stream: EventStream, request: CompletionRequest, job: CompletionJob) -> None:
        head = {"id": answer_id(request.endpoint, job.ids[0]), "created": int(time.time()), **request.named}
        chunks = [
            Chunks(
                request.endpoint,
                head,
                may_call=request.may_call,
                include_usage=request.include_usage,
                first=place * request.n,
            )
            for place in range(len(job.ids))
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for place, own in enumerate(chunks):
                    group.create_task(self._tell_one(stream, own, job, place, request.sent))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if request.include_usage:
            await stream.write(event(chunks[0].of_usage(await job.client.usage(job.ids))))

    async def _tell_one(
        self, stream: EventStream, chunks: Chunks, job: CompletionJob, place: int, sent: Mapping[str, str]
    ) -> None:
        async with aclosing(job.client.stream(job.ids[place])) as events:
            async for one in events:
                match one:
                    case TokenEvent():
                        await self._write(stream, b"".join(map(event, chunks.of(one.choices))))
                    case RewindEvent():
                        message = (
                            "this answer begins anew: the queue's server lost a part of it, or another model "
                            "has the queue now; send the request again"
                        )
                        raise ApiError(500, message, "stream_rewound", headers=NO_RETRY)
                    case EndEvent():
                        await _check_end(one, job, place, sent)

    async def _write(self, stream: EventStream, data: bytes) -> None:
        if data:
            await stream.write(data)
        if self._first:
            self._gateway.metrics.first_event.observe(time.monotonic() - self.context.began_s)
            self._first = False


async def _check_end(end: EndEvent, job: CompletionJob, place: int, sent: Mapping[str, str]) -> None:
    """Raises the error of a job that was not completed."""
    if end.state is State.COMPLETED or not await job.ends_by(end.state):
        return
    if end.error is not None:
        raise failure(error_as_sent(end.error, sent, place, len(job.ids)))
    end.raise_for_state()
