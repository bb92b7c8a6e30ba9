"""GET /v1/models: each queue that the caller may use is a model, and its workers' checkpoint another name of
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.page import page_response
from millstream.gateway.queues.queue_directory import ServedQueue


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    gateway: GatewayContext

    async def list(self, request: Request, caller: ApiKey) -> Response:
        seen = await self.gateway.directory.seen_by(caller)
        return await page_response((_model(one, one.queue) for one in seen), has_more=False)

    async def one(self, request: Request, caller: ApiKey) -> Response:
        name = request.path_params["id"]
        return JSONResponse(_model(await self.gateway.directory.find(name, caller), name))


def _model(served: ServedQueue, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": served.created_s,
        "owned_by": "millstream",
        "root": served.checkpoint or None,
        "ready": served.ready,
        "max_model_len": served.context_length or None,
        "input_modalities": served.input_modalities,
    }
