"""Serves probes, dashboards and autoscalers: `/healthz`, `/readyz`, `/metrics`, `/version`, `/backlog`."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from millstream.client.session.queue_scrape import QueueScrape
from millstream.client.session.queue_status import QueueStatus
from millstream.errors import MillstreamError
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.context import GatewayContext
from millstream.version import version
from millstream.wire.metrics_page import encoded
from millstream.wire.state.queue_series import QueueSeries


class OperatorRoutes:
    """`/backlog` asks for a key and shows its queues; the others name no tenant and ask for none."""

    def __init__(self, gateway: GatewayContext, registry: CollectorRegistry) -> None:
        self.gateway = gateway
        self.registry = registry
        reads = {queue: gateway.clients[queue].queue_info for queue in gateway.directory.queues}
        self.scrape = QueueScrape(QueueSeries(registry), reads, open_page=True)

    async def healthz(self, request: Request) -> Response:
        """Answers 200 as long as the process runs."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Answers 200 if the server of the queues answers, too, and 503 otherwise."""
        try:
            with self.gateway.redis.reach():
                await self.gateway.redis.client.ping()
        except MillstreamError as error:
            return PlainTextResponse(f"{type(error).__name__}: the queue's server cannot be used\n", 503)
        return PlainTextResponse("ok\n")

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": version()})

    async def metrics(self, request: Request) -> Response:
        """Serves the gateway's own series, and those of its queues as they are now."""
        await self.scrape.refresh()
        page, content_type = encoded(self.registry, request.headers.get("accept", ""))
        return Response(page, media_type=content_type)

    async def backlog(self, request: Request, caller: ApiKey) -> Response:
        seen = await self.gateway.directory.seen_by(caller)
        queues = {one.queue: _to_api(await self.gateway.clients[one.queue].queue_info()) for one in seen}
        waiting = [one["waiting"] for one in queues.values()]
        return JSONResponse({"queues": queues, "waiting": sum(count or 0 for count in waiting)})


def _to_api(status: QueueStatus) -> dict[str, Any]:
    """Converts a queue's status; a number that the gateway's role may not read is null."""
    lanes = {
        lane.lane: {"waiting": lane.waiting, "running": lane.running, "oldest_s": lane.oldest_s}
        for lane in status.lanes
    }
    workers = None if status.workers is None else len(status.workers)
    return {"waiting": status.waiting, "delayed": status.delayed, "lanes": lanes, "workers": workers}
