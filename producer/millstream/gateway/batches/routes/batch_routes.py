"""/v1/batches: making, listing, looking at and cancelling batches. A gateway's runner does the rest."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millstream.client.submit.request_cost import BYTES_PER_TOKEN
from millstream.errors import InvalidRequest
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_record import PREFIX, BatchRecord, BatchStatus
from millstream.gateway.batches.records.open_batches import OpenBatch
from millstream.gateway.batches.routes.batch_request import BatchRequest, read_batch_request
from millstream.gateway.batches.routes.result_rows import ResultRows
from millstream.gateway.batches.routes.result_stream import result_stream
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.file_record import FileRecord
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.gateway.http.json_body import body_of, json_object
from millstream.gateway.http.page import PageRequest, page_response, unknown_after
from millstream.gateway.http.request_context import RequestContext
from millstream.openai.api_error import NO_RETRY, ApiError
from millstream.wire.keys import Lane, new_own_id

PATH = "/v1/batches"
CREATING_S = 60  # for which a charged batch may be without its record
LATER_S = 3600  # how long a batch counts as enqueued beyond its window
LISTED, MOST_LISTED = 20, 100
MOST_BYTES = 64 * 1024  # of a body: what it asks for is short


@dataclass(frozen=True, slots=True)
class BatchRoutes:
    gateway: GatewayContext
    catalogue: BatchCatalogue

    async def create(self, request: Request, caller: ApiKey) -> Response:
        raw = await body_of(request, min(MOST_BYTES, self.gateway.settings.max_body_bytes))
        wanted = read_batch_request(json_object(raw))
        file = await self._input(caller, wanted)
        idempotency = self.gateway.idempotency
        post = await idempotency.begin(caller, PATH, raw, "", request.headers, new_own_id())
        if post.joined:
            self.gateway.metrics.joined.inc()
        async with idempotency.tracked(post):
            await idempotency.enter(post)
            batch = await self._create(caller, wanted, file, f"{PREFIX}{post.own_id}")
            RequestContext.of(request.scope).line.batch_id = batch.id
            if await request.is_disconnected():
                raise ClientDisconnected  # a repeated POST may join this one
            return JSONResponse(batch.to_api())

    async def _input(self, caller: ApiKey, wanted: BatchRequest) -> FileRecord:
        if caller.lanes and Lane.BATCH not in caller.lanes:
            message = f"batches are in lane batch, and this key may use {', '.join(caller.lanes)}"
            raise ApiError(403, message, "lane_not_allowed")
        found = await self.gateway.files.find(caller.tenant, wanted.input_file_id)
        if found is None:
            message = f"input_file_id: there is no file {wanted.input_file_id[:200]!r}"
            raise ApiError(404, message, "not_found", "input_file_id")
        if found.purpose != "batch":
            problem = f"is for {found.purpose}; upload the file with the purpose batch"
            raise InvalidRequest("input_file_id", wanted.input_file_id, problem)
        return found

    async def _create(self, caller: ApiKey, wanted: BatchRequest, file: FileRecord, id: str) -> BatchRecord:
        """Or the one that an earlier request of the same id has made."""
        if (made := await self.catalogue.find(caller.tenant, id)) is not None:
            return made
        tokens = max(1, file.bytes // BYTES_PER_TOKEN)
        charge = await self.gateway.rate_limits.charge_batch(caller, id, tokens, CREATING_S)
        return await self.catalogue.create(
            caller.tenant,
            id,
            wanted.fields(caller),
            window_s=wanted.window_s,
            charge=charge,
            lasts_s=wanted.window_s + LATER_S,
        )

    async def list(self, request: Request, caller: ApiKey) -> Response:
        paging = PageRequest.parse(request, default=LISTED, most=MOST_LISTED)
        page = await self.catalogue.page(caller.tenant, after=paging.after, limit=paging.limit)
        if page is None:
            raise unknown_after(paging.after)
        return await page_response((one.to_api() for one in page.records), page.has_more)

    async def one(self, request: Request, caller: ApiKey) -> Response:
        batch = await self._find(request, caller)
        if not batch.status.has_ended:
            await self.catalogue.open.ensure_scheduled(OpenBatch(batch.tenant, batch.id))
        return JSONResponse(batch.to_api())

    async def cancel(self, request: Request, caller: ApiKey) -> Response:
        batch = await self._find(request, caller)
        status = await self.catalogue.cancel(batch.tenant, batch.id)
        if status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            message = f"the batch is {status} already, and cannot be cancelled"
            raise ApiError(409, message, "conflict", headers=NO_RETRY)
        return JSONResponse((await self._find(request, caller)).to_api())

    async def results(self, request: Request, caller: ApiKey) -> Response:
        batch = await self._find(request, caller)
        await self.gateway.marker.confirm()
        rows = ResultRows(self.gateway.store, self.catalogue, batch)
        return await result_stream(request, rows)

    async def _find(self, request: Request, caller: ApiKey) -> BatchRecord:
        """Raises ApiError 404, also for another tenant's."""
        id = request.path_params["id"]
        if (found := await self.catalogue.find(caller.tenant, id)) is None:
            message = f"id: there is no batch {id[:100]!r}, or it has expired"
            raise ApiError(404, message, "not_found", "id", NO_RETRY)
        RequestContext.of(request.scope).line.batch_id = found.id
        return found
