"""What probes, dashboards and autoscalers read: `/healthz`, `/readyz`, `/metrics`, `/backlog`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from millstream.client.session.queue_status import QueueStatus
from millstream.errors import MillstreamError
from millstream.gateway.context import Services
from millstream.gateway.http.request_context import Exchange


@dataclass(frozen=True, slots=True)
class OperatorRoutes:
    """`/backlog` asks for a key and shows its queues; the others name no tenant and ask for none."""

    services: Services
    registry: CollectorRegistry

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        Exchange.of(request.scope).route = "/healthz"
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """The server of the queues answers, too."""
        Exchange.of(request.scope).route = "/readyz"
        try:
            with self.services.access.reach():
                await self.services.access.redis.ping()
        except MillstreamError as error:
            return PlainTextResponse(f"{type(error).__name__}: the queue's server cannot be used\n", 503)
        return PlainTextResponse("ok\n")

    async def metrics(self, request: Request) -> Response:
        Exchange.of(request.scope).route = "/metrics"
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

    async def backlog(self, request: Request) -> Response:
        Exchange.of(request.scope).route = "/backlog"
        caller = await self.services.callers.identify(request)
        seen = await self.services.directory.seen_by(caller)
        queues = {one.queue: await self._backlog(one.queue) for one in seen}
        waiting = [one["waiting"] for one in queues.values()]
        return JSONResponse({"queues": queues, "waiting": sum(count or 0 for count in waiting)})

    async def _backlog(self, queue: str) -> dict[str, Any]:
        return _shown(await self.services.clients[queue].queue_info())


def _shown(status: QueueStatus) -> dict[str, Any]:
    """Null where the gateway's role may not read it."""
    lanes = {
        lane.lane: {"waiting": lane.waiting, "running": lane.running, "oldest_s": lane.oldest_s}
        for lane in status.lanes
    }
    workers = None if status.workers is None else len(status.workers)
    return {"waiting": status.waiting, "delayed": status.delayed, "lanes": lanes, "workers": workers}
