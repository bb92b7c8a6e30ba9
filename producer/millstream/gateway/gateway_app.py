"""Builds the application: its routes and their handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.errors import MillstreamError
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.routes.batch_routes import BatchRoutes
from millstream.gateway.completions.completion_route import CompletionRoute
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.routes.file_routes import FileRoutes
from millstream.gateway.http.client_disconnect import ClientDisconnected
from millstream.gateway.http.request_context import GatewayMiddleware, RequestContext, error_answer
from millstream.gateway.status.model_routes import ModelRoutes
from millstream.gateway.status.operator_routes import OperatorRoutes
from millstream.openai.api_endpoint import ApiEndpoint
from millstream.openai.api_error import NO_RETRY, ApiError

COMPRESSED_BYTES = 1024  # smaller answers are sent as they are
COMPRESSION = 4  # zlib's level: contents of files are long
# Of OpenAI's API, and not here: refused by name, so that no client takes them for a wrong address.
ABSENT = (
    "assistants", "audio", "chatkit", "containers", "conversations", "decisions", "embeddings", "evals",
    "fine_tuning", "images", "messages", "moderations", "organization", "realtime",
    "responses", "threads", "uploads", "vector_stores", "videos", "webhook_endpoints",
)  # fmt: skip
EXPOSED = (  # headers that web pages may read
    "x-request-id", "x-client-request-id", "openai-processing-ms", "x-should-retry", "retry-after",
    "retry-after-ms", "x-millstream-ignored", "x-millstream-schema", "accept-ranges", "content-range",
    "content-disposition",
    *(f"x-ratelimit-{one}-requests" for one in ("limit", "remaining", "reset")),
    *(f"x-ratelimit-{one}-tokens" for one in ("limit", "remaining", "reset")),
)  # fmt: skip
_PREFIX = "/v1"
_ANY = ["GET", "POST", "PUT", "PATCH", "DELETE"]

Endpoint = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, ApiKey], Awaitable[Response]]


class Compression(GZipMiddleware):
    """Compresses all answers but event streams and byte ranges; bytes of these are counted as stored."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        whole = scope["type"] == "http" and "range" not in Headers(scope=scope)
        await (super().__call__ if whole else self.app)(scope, receive, send)


def application(gateway: GatewayContext, registry: CollectorRegistry, most_requests: int) -> ASGIApp:
    """Builds the whole API, whose paths also work without `/v1`."""
    handlers = dict.fromkeys(
        (ApiError, MillstreamError, ClientDisconnected, HTTPException, Exception), _answer
    )
    middleware = [Middleware(Compression, minimum_size=COMPRESSED_BYTES, compresslevel=COMPRESSION)]
    app = Starlette(routes=routes(gateway, registry), middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _for_pages(
        GatewayMiddleware(_with_either_end(app), gateway.metrics, most_requests),
        gateway.settings.allow_origins,
    )


def _with_either_end(app: ASGIApp) -> ASGIApp:
    """A slash behind a path changes nothing: a redirect would lose the body of a POST in many clients."""

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if len(path := scope.get("path", "")) > 1:
            scope["path"] = path.removesuffix("/")
        await app(scope, receive, send)

    return routed


def _for_pages(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Browsers let pages of these origins call, and read all answers, errors too."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        allow_private_network=True,
        expose_headers=EXPOSED,
    )


def routes(gateway: GatewayContext, registry: CollectorRegistry) -> list[Route]:
    return [*_of_operators(gateway, OperatorRoutes(gateway, registry)), *_of_api(gateway)]


def _of_operators(gateway: GatewayContext, own: OperatorRoutes) -> Iterator[Route]:
    handlers: dict[str, Endpoint] = {
        "/healthz": own.healthz,
        "/readyz": own.readyz,
        "/health": own.readyz,  # as vLLM, SGLang and llama.cpp name it
        "/ping": own.readyz,  # as SageMaker asks
        "/version": own.version,
        "/metrics": own.metrics,
        "/backlog": _for_caller(gateway, own.backlog),
    }
    for name, handler in handlers.items():
        yield Route(name, _named(name, handler), methods=["GET"])


def _of_api(gateway: GatewayContext) -> Iterator[Route]:
    models, files = ModelRoutes(gateway), FileRoutes(gateway)
    batches = BatchRoutes(gateway, BatchCatalogue(gateway.redis))
    # One route has all methods of its path, so that it refuses others with 405.
    handlers: dict[str, dict[str, Handler]] = {
        "/v1/models": {"GET": models.list},
        "/v1/models/{id:path}": {"GET": models.one},
        "/v1/files": {"GET": files.list, "POST": files.upload},
        "/v1/files/{id}": {"GET": files.one, "DELETE": files.delete},
        "/v1/files/{id}/content": {"GET": files.content},
        "/v1/batches": {"GET": batches.list, "POST": batches.create},
        "/v1/batches/{id}": {"GET": batches.one},
        "/v1/batches/{id}/cancel": {"POST": batches.cancel},
        "/v1/batches/{id}/results": {"GET": batches.results},
    }
    for prefix in (_PREFIX, ""):
        for endpoint in ApiEndpoint:
            path = prefix + endpoint.removeprefix(_PREFIX)
            yield Route(path, CompletionRoute(endpoint, gateway), methods=["POST"])
        for path, methods in handlers.items():
            one = _named(path.replace(":path", ""), _for_caller(gateway, _any_of(methods)))
            yield Route(prefix + path.removeprefix(_PREFIX), one, methods=list(methods))
        for name in ABSENT:
            for path in (f"{prefix}/{name}", f"{prefix}/{name}/{{rest:path}}"):
                yield Route(path, _named("absent", _absent), methods=_ANY)


def _named(name: str, endpoint: Endpoint) -> Endpoint:
    """Sets the route's name for the metrics."""

    async def named(request: Request) -> Response:
        RequestContext.of(request.scope).route = name
        return await endpoint(request)

    return named


def _for_caller(gateway: GatewayContext, handler: Handler) -> Endpoint:
    """Authenticates the caller first."""

    async def identified(request: Request) -> Response:
        caller = await gateway.authenticator.identify(request)
        RequestContext.of(request.scope).line.tenant = caller.tenant or None
        return await handler(request, caller)

    return identified


def _any_of(methods: Mapping[str, Handler]) -> Handler:
    async def chosen(request: Request, caller: ApiKey) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await methods[method](request, caller)

    return chosen


async def _absent(request: Request) -> Response:
    path = request.url.path
    message = f"{path:.200} is not implemented by this gateway; see ops/pages/gateway.md for what is"
    raise ApiError(501, message, "not_implemented", headers=NO_RETRY)


async def _answer(request: Request, error: Exception) -> Response:
    return error_answer(error, RequestContext.of(request.scope))
