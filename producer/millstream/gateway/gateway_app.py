"""The application: which route is whose."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.routes.batch_routes import BatchRoutes
from millstream.gateway.completions.completion_route import GenerationEndpoint
from millstream.gateway.context import Services
from millstream.gateway.files.routes.file_routes import FileRoutes
from millstream.gateway.http.api_error import NO_RETRY, ApiError
from millstream.gateway.http.client_disconnect import ClientGone
from millstream.gateway.http.request_context import Exchange, Outermost, error_answer
from millstream.gateway.status.model_routes import ModelRoutes
from millstream.gateway.status.operator_routes import OperatorRoutes
from millstream.openai.request_body import BatchEndpoint

COMPRESSED_BYTES = 1024  # smaller answers are sent as they are
COMPRESSION = 4  # zlib's level: contents of files are long
# Of OpenAI's API, and not here: refused by name, so that no client takes them for a wrong address.
ABSENT = (
    "assistants", "audio", "chatkit", "containers", "conversations", "decisions", "embeddings", "evals",
    "fine_tuning", "images", "messages", "moderations", "organization", "realtime",
    "responses", "threads", "uploads", "vector_stores", "videos", "webhook_endpoints",
)  # fmt: skip
_ANY = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Compression(GZipMiddleware):
    """Of all but event streams, and of parts: their bytes are counted as they are stored."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = scope["type"] == "http" and "range" not in Headers(scope=scope)
        await (super().__call__ if whole else self.app)(scope, receive, send)


def application(services: Services, registry: CollectorRegistry, most_requests: int) -> ASGIApp:
    """All of the API, also without `/v1`."""
    handlers = dict.fromkeys((ApiError, MillstreamError, ClientGone, HTTPException, Exception), _answer)
    middleware = [Middleware(Compression, minimum_size=COMPRESSED_BYTES, compresslevel=COMPRESSION)]
    app = Starlette(routes=routes(services, registry), middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Outermost(app, services.metrics, most_requests)


def routes(services: Services, registry: CollectorRegistry) -> list[Route]:
    return [*_of_operators(OperatorRoutes(services, registry)), *_of_api(services)]


def _of_operators(routes: OperatorRoutes) -> Iterator[Route]:
    for name in ("healthz", "readyz", "metrics", "backlog"):
        yield Route(f"/{name}", getattr(routes, name), methods=["GET"])


def _of_api(services: Services) -> Iterator[Route]:
    models, files = ModelRoutes(services), FileRoutes(services)
    batches = BatchRoutes(services, BatchCatalogue(services.access))
    for prefix in ("/v1", ""):
        for endpoint in BatchEndpoint:
            path = prefix + endpoint.removeprefix("/v1")
            yield Route(path, GenerationEndpoint(endpoint, services), methods=["POST"])
        yield Route(f"{prefix}/models", models.all, methods=["GET"])
        yield Route(f"{prefix}/models/{{id:path}}", models.one, methods=["GET"])
        yield Route(f"{prefix}/files", files.collection, methods=["GET", "POST"])
        yield Route(f"{prefix}/files/{{id}}", files.one, methods=["GET", "DELETE"])
        yield Route(f"{prefix}/files/{{id}}/content", files.content, methods=["GET"])
        yield Route(f"{prefix}/batches", batches.collection, methods=["GET", "POST"])
        yield Route(f"{prefix}/batches/{{id}}", batches.one, methods=["GET"])
        yield Route(f"{prefix}/batches/{{id}}/cancel", batches.cancel, methods=["POST"])
        yield Route(f"{prefix}/batches/{{id}}/results", batches.results, methods=["GET"])
        for name in ABSENT:
            for path in (f"{prefix}/{name}", f"{prefix}/{name}/{{rest:path}}"):
                yield Route(path, _absent, methods=_ANY)


async def _absent(request: Request) -> Response:
    Exchange.of(request.scope).route = "absent"
    path = request.url.path
    message = f"{path:.200} is not implemented by this gateway; see ops/pages/gateway.md for what is"
    raise ApiError(501, message, "not_implemented", headers=NO_RETRY)


async def _answer(request: Request, error: Exception) -> Response:
    return error_answer(error)
