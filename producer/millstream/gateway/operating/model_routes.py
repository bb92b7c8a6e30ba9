"""GET /v1/models: each queue that the caller may use is a model, and its workers' checkpoint another name of
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from millstream.gateway.services.queue_directory import ServedQueue
from millstream.gateway.services.services import Services
from millstream.gateway.web.exchange import Exchange


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    services: Services

    async def all(self, request: Request) -> JSONResponse:
        Exchange.of(request.scope).route = "/v1/models"
        caller = await self.services.callers.identify(request)
        data = [_model(one, one.queue) for one in await self.services.directory.seen_by(caller)]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        page = {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": False}
        return JSONResponse(page)

    async def one(self, request: Request) -> JSONResponse:
        Exchange.of(request.scope).route = "/v1/models/{id}"
        caller = await self.services.callers.identify(request)
        name = request.path_params["id"]
        return JSONResponse(_model(await self.services.directory.find(name, caller), name))


def _model(served: ServedQueue, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created_s,
        "owned_by": "millstream",
        "root": served.checkpoint or None,
        "ready": served.ready,
        "max_model_len": served.context_length or None,
    }
