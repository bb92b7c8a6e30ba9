"""POST, GET and DELETE of /v1/files. A file that is another tenant's is not there."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from millstream.errors import InvalidRequest
from millstream.gateway.auth.idempotency import KEEP_S, key_reused, once_of
from millstream.gateway.context import Services
from millstream.gateway.files.routes.upload import PATH, Upload
from millstream.gateway.files.store.file_record import PURPOSES, FileRecord
from millstream.gateway.http.api_error import NO_RETRY, ApiError
from millstream.gateway.http.byte_range import byte_range
from millstream.gateway.http.page import Paging, page_body, unknown_after
from millstream.gateway.http.request_context import Exchange
from millstream.gateway.redis.file_calls import OnceFile
from millstream.gateway.redis.gateway_calls import OnceOutcome

MOST_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class FileRoutes:
    services: Services

    async def collection(self, request: Request) -> Response:
        Exchange.of(request.scope).route = PATH
        return await (self._upload(request) if request.method == "POST" else self._list(request))

    async def _upload(self, request: Request) -> Response:
        caller = await self.services.callers.identify(request)
        key = once_of(caller.tenant, request.headers)
        await self.services.marker.confirm()
        most_bytes = self.services.settings.max_file_bytes
        upload = Upload(self.services.store, caller.tenant, most_bytes, hashlib.sha256() if key else None)
        record = await upload.receive(request)
        once = OnceFile(key, upload.digest, round(KEEP_S * 1000)) if key else None
        return JSONResponse((await self._add(record, once)).shown())

    async def _add(self, record: FileRecord, once: OnceFile | None) -> FileRecord:
        """Or the one that an earlier upload of the same Idempotency-Key has made. Raises ApiError 409."""
        outcome, id = await self.services.files.add(record, once)
        if outcome is OnceOutcome.NEW:
            return record
        await self.services.store.delete(record.path)
        if outcome is OnceOutcome.CONFLICT:
            raise key_reused()
        made = await self.services.files.find(record.tenant, id)
        if made is None:
            message = (
                f"the file of this Idempotency-Key, {id}, was deleted or has expired; choose another key"
            )
            raise ApiError(409, message, "conflict", "Idempotency-Key", NO_RETRY)
        self.services.metrics.joined.inc()
        return made

    async def _list(self, request: Request) -> Response:
        caller = await self.services.callers.identify(request)
        paging = Paging.of(request, default=MOST_LISTED, most=MOST_LISTED)
        page = await self.services.files.page(
            caller.tenant,
            after=paging.after,
            limit=paging.limit,
            newest_first=paging.newest_first,
            purpose=_purpose(request),
        )
        if page is None:
            raise unknown_after(paging.after)
        return JSONResponse(page_body([one.shown() for one in page.records], page.has_more))

    async def one(self, request: Request) -> Response:
        Exchange.of(request.scope).route = "/v1/files/{id}"
        record = await self._find(request)
        if request.method != "DELETE":
            return JSONResponse(record.shown())
        await self.services.marker.confirm()
        await self.services.files.remove(record.tenant, record.id)
        await self.services.store.delete(record.path)
        return JSONResponse({"id": record.id, "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        Exchange.of(request.scope).route = "/v1/files/{id}/content"
        record = await self._find(request)
        await self.services.marker.confirm()
        part = byte_range(request, record.bytes)
        start, end = (part.start, part.end) if part else (0, record.bytes)
        headers = {
            "content-length": str(end - start),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
            "accept-ranges": "bytes",
        } | (part.headers if part else {})
        chunks = await _begun(self.services.store.read(record.path, start, end))
        body = chunks if request.method != "HEAD" else _nothing()
        return StreamingResponse(body, 206 if part else 200, headers, "application/octet-stream")

    async def _find(self, request: Request) -> FileRecord:
        """Raises ApiError 401, 404."""
        caller = await self.services.callers.identify(request)
        id = request.path_params["id"]
        record = await self.services.files.find(caller.tenant, id)
        if record is None:
            message = f"id: there is no file {id[:100]!r}, or it has expired"
            raise ApiError(404, message, "not_found", "id", NO_RETRY)
        return record


def _purpose(request: Request) -> str | None:
    """Raises InvalidRequest."""
    purpose = request.query_params.get("purpose") or None
    if purpose is not None and purpose not in PURPOSES:
        raise InvalidRequest("purpose", purpose, f"must be one of {', '.join(PURPOSES)}")
    return purpose


async def _begun(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, once the first of them is there: what prevents that can still be told by a status."""
    first = await anext(chunks, b"")
    return _chained(first, chunks)


async def _chained(first: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in chunks:
        yield chunk


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
