"""POST, GET and DELETE of /v1/files. A file that is another tenant's is not there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from millstream.errors import InvalidRequest
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.auth.idempotency import KEEP_S, idempotency_digest, key_reused
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.routes.upload import Upload
from millstream.gateway.files.store.file_record import PURPOSES, FileRecord
from millstream.gateway.http.byte_range import byte_range
from millstream.gateway.http.event_stream import begun
from millstream.gateway.http.page import PageRequest, page_response, unknown_after
from millstream.gateway.http.request_context import RequestContext
from millstream.gateway.redis.file_calls import OnceFile
from millstream.gateway.redis.gateway_calls import OnceOutcome
from millstream.openai.api_error import NO_RETRY, ApiError

MOST_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class FileRoutes:
    gateway: GatewayContext

    async def upload(self, request: Request, caller: ApiKey) -> Response:
        key = idempotency_digest(caller.tenant, request.headers)
        await self.gateway.marker.confirm()
        most_bytes = self.gateway.settings.max_file_bytes
        upload = Upload(self.gateway.store, caller.tenant, most_bytes, hashlib.sha256() if key else None)
        record = await upload.receive(request)
        once = OnceFile(key, upload.digest, round(KEEP_S * 1000)) if key else None
        made = await self._add(record, once)
        RequestContext.of(request.scope).line.file_id = made.id
        return JSONResponse(made.to_api())

    async def _add(self, record: FileRecord, once: OnceFile | None) -> FileRecord:
        """Or the one that an earlier upload of the same Idempotency-Key has made. Raises ApiError 409."""
        outcome, id = await self.gateway.files.add(record, once)
        if outcome is OnceOutcome.NEW:
            return record
        await self.gateway.store.delete(record.path)
        if outcome is OnceOutcome.CONFLICT:
            raise key_reused()
        made = await self.gateway.files.find(record.tenant, id)
        if made is None:
            message = (
                f"the file of this Idempotency-Key, {id}, was deleted or has expired; choose another key"
            )
            raise ApiError(409, message, "conflict", "Idempotency-Key", NO_RETRY)
        self.gateway.metrics.joined.inc()
        return made

    async def list(self, request: Request, caller: ApiKey) -> Response:
        paging = PageRequest.parse(request, default=MOST_LISTED, most=MOST_LISTED)
        purpose = _purpose(request)
        page = await self.gateway.files.page(
            caller.tenant,
            after=paging.after,
            limit=paging.limit,
            newest_first=paging.newest_first,
            wanted=lambda one: purpose in (None, one.purpose),
        )
        if page is None:
            raise unknown_after(paging.after)
        return await page_response((one.to_api() for one in page.records), page.has_more)

    async def one(self, request: Request, caller: ApiKey) -> Response:
        return JSONResponse((await self._find(request, caller)).to_api())

    async def delete(self, request: Request, caller: ApiKey) -> Response:
        record = await self._find(request, caller)
        await self.gateway.marker.confirm()
        await self.gateway.files.remove(record.tenant, record.id)
        await self.gateway.store.delete(record.path)
        return JSONResponse({"id": record.id, "object": "file", "deleted": True})

    async def content(self, request: Request, caller: ApiKey) -> Response:
        record = await self._find(request, caller)
        await self.gateway.marker.confirm()
        part = byte_range(request, record.bytes)
        start, end = (part.start, part.end) if part else (0, record.bytes)
        headers = {
            "content-length": str(end - start),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(record.filename, safe='')}",
            "accept-ranges": "bytes",
        } | (part.headers if part else {})
        chunks = await begun(self.gateway.store.read(record.path, start, end))
        body = chunks if request.method != "HEAD" else iter(())
        return StreamingResponse(body, 206 if part else 200, headers, "application/octet-stream")

    async def _find(self, request: Request, caller: ApiKey) -> FileRecord:
        """Raises ApiError 404."""
        id = request.path_params["id"]
        record = await self.gateway.files.find(caller.tenant, id)
        if record is None:
            message = f"id: there is no file {id[:100]!r}, or it has expired"
            raise ApiError(404, message, "not_found", "id", NO_RETRY)
        RequestContext.of(request.scope).line.file_id = record.id
        return record


def _purpose(request: Request) -> str | None:
    """Raises InvalidRequest."""
    purpose = request.query_params.get("purpose") or None
    if purpose is not None and purpose not in PURPOSES:
        raise InvalidRequest("purpose", purpose, f"must be one of {', '.join(PURPOSES)}")
    return purpose
