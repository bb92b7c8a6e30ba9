"""GET /v1/batches/{id}/results: rows as they finish, as NDJSON, or as server-sent events
for who accepts those.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from millstream.errors import InvalidRequest
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord
from millstream.gateway.files.store.file_record import object_path
from millstream.gateway.files.store.object_store import MissingObject, ObjectStore
from millstream.gateway.http.event_stream import DONE, PING_S, begun

LOOK_S = 0.5  # for new parts
EVENTS = "text/event-stream"
Writes = Callable[[int, bytes], bytes]  # the row of this number


class ResultRows:
    """Iterated once."""

    def __init__(self, store: ObjectStore, catalogue: BatchCatalogue, batch: BatchRecord) -> None:
        self._store, self._catalogue, self._batch = store, catalogue, batch

    async def behind(self, count: int) -> AsyncIterator[list[bytes]]:
        """All rows but the first `count`, without the ends of their lines, until the batch ends. An empty
        list comes when there is nothing new. Raises MissingObject if its files were deleted, Unavailable.
        """
        place, before, offsets = 0, 0, Counter[str]()
        while True:
            has_ended = await self._has_ended()  # before the parts: then these are all
            for part in await self._catalogue.parts(self._batch, place):
                if before + part.rows > count:
                    async for rows in self._rows(part, offsets[part.kind], max(0, count - before)):
                        yield rows
                place, before = place + 1, before + part.rows
                offsets[part.kind] += part.bytes
            if has_ended:
                return
            yield []
            await asyncio.sleep(LOOK_S)

    async def _has_ended(self) -> bool:
        found = await self._catalogue.find(self._batch.tenant, self._batch.id)
        return found is None or found.status.has_ended

    async def _rows(self, part: BatchPart, offset: int, skipped: int) -> AsyncIterator[list[bytes]]:
        """The part's rows without the first ones. `offset`: where the part is in its file."""
        held = b""
        async for chunk in self._chunks(part, offset):
            *rows, held = (held + chunk).split(b"\n")
            skipped, rows = max(0, skipped - len(rows)), rows[skipped:]
            if rows:
                yield rows

    async def _chunks(self, part: BatchPart, offset: int) -> AsyncIterator[bytes]:
        begun = False
        try:
            async for chunk in self._store.read(f"{self._batch.folder}/{part.name}"):
                begun = True
                yield chunk
        except MissingObject:
            assert not begun, "an object is there whole"
            path = object_path(self._batch.tenant, self._batch.file_id(part.kind))
            async for chunk in self._store.read(path, offset, offset + part.bytes):
                yield chunk


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
