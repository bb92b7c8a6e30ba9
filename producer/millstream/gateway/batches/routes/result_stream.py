"""GET /v1/batches/{id}/results: rows as they finish, as NDJSON, or as server-sent events
for who accepts those.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.errors import InvalidRequest
from millstream.gateway.batches.routes.result_rows import ResultRows
from millstream.gateway.http.event_stream import DONE, PING_S, begun

EVENTS = "text/event-stream"
Writes = Callable[[int, bytes], bytes]  # the row of this number


async def result_stream(request: Request, rows: ResultRows) -> Response:
    """Raises InvalidRequest, MissingObject, Unavailable."""
    count = _rows_had(request)
    # Compressed, rows would wait in a buffer for more of them.
    headers = {"cache-control": "no-cache", "x-accel-buffering": "no", "content-encoding": "identity"}
    if request.method == "HEAD":
        return Response(headers=headers)
    finished = await begun(rows.behind(count))
    if EVENTS in request.headers.get("accept", ""):
        body = _written(finished, count, _event, ping=b": ping\n\n", end=DONE)
        return StreamingResponse(body, headers=headers, media_type=EVENTS)
    body = _written(finished, count, _line, ping=b"\n", end=b"")
    return StreamingResponse(body, headers=headers, media_type="application/x-ndjson")


async def _written(
    finished: AsyncIterator[list[bytes]], count: int, write: Writes, *, ping: bytes, end: bytes
) -> AsyncIterator[bytes]:
    """A ping goes out where nothing else has for a while."""
    sent_s = time.monotonic()
    async for some in finished:
        if some:
            yield b"".join(write(count + place, row) for place, row in enumerate(some, 1))
            count += len(some)
        elif time.monotonic() - sent_s < PING_S:
            continue
        else:
            yield ping
        sent_s = time.monotonic()
    if end:
        yield end


def _line(number: int, row: bytes) -> bytes:
    return row + b"\n"


def _event(number: int, row: bytes) -> bytes:
    """With its number as the event's id, which a browser sends back when it connects again."""
    return b"id: %d\ndata: %b\n\n" % (number, row)


def _rows_had(request: Request) -> int:
    given = request.query_params.get("after") or request.headers.get("last-event-id") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise InvalidRequest("after", given, "give the number of rows that you have")
    return int(given)
