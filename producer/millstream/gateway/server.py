"""Runs the gateway: its address, its limits of the system, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from millstream import __version__
from millstream.client.session.run_while import run_while
from millstream.errors import InvalidRequest, MillstreamError
from millstream.gateway.auth.api_keys import ApiKeyStore
from millstream.gateway.batches.runner.batch_runner import BatchRunner
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.store_marker import TOLD
from millstream.gateway.gateway_app import application
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.http.bounded_connection import BoundedConnection

_log = structlog.get_logger(__name__)
KEEP_ALIVE_S = 75  # longer than clients and proxies keep a connection that they may use again
_OWN_FILES = 256  # file descriptors for everything but requests
_BACKLOG = 2048


class CannotListen(MillstreamError):
    """The address cannot be used."""


class GatewayServer(uvicorn.Server):
    """Stops the batch runner at once at shutdown; only requests get the grace period."""

    def __init__(self, config: uvicorn.Config, runner: BatchRunner) -> None:
        super().__init__(config)
        self._runner = runner

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        grace_s = self.config.timeout_graceful_shutdown
        _log.info("gateway draining", requests=len(self.server_state.tasks), grace_s=grace_s)
        await asyncio.gather(self._runner.stop(), super().shutdown(sockets))
        _log.info("gateway ended")


async def serve(settings: GatewaySettings, listening: Callable[[str], None] = lambda _: None) -> None:
    """Serves until SIGTERM or SIGINT; requests under way get the grace period. `listening` takes the URL.
    Raises InvalidRequest without any key that callers could have, CannotListen, Unavailable.
    """
    registry = CollectorRegistry()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ProcessCollector(registry=registry)
    gateway = GatewayContext(settings, GatewayMetrics(registry))
    try:
        await _check_door(settings, gateway)
        await _check_store(gateway)
        app = application(gateway, registry, _most_requests(settings.max_requests))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.grace_s)),
        )
        with _listener(settings) as listener, _ended_by_signals():
            url = f"http://{_shown(listener)}"
            _log.info("gateway listens", url=url, queues=settings.queues, version=__version__)
            listening(url)
            runner = BatchRunner(gateway)
            serving = run_while(runner.run(), GatewayServer(config, runner).serve([listener]))
            await run_while(gateway.metrics.loop_gaps.watch(), run_while(gateway.run(), serving))
    finally:
        await gateway.aclose()


async def _check_door(settings: GatewaySettings, gateway: GatewayContext) -> None:
    if settings.keyless:
        return
    with gateway.redis.reach():
        if await ApiKeyStore(gateway.redis.client).ever_made():
            return
    if settings.on_loopback:
        problem = "without it callers on this machine need an API key, too, and the server has never had one"
        raise InvalidRequest("--open", settings.open, f"{problem}; give it, or run `millstream keys add`")
    problem = "needs API keys, as others can reach it; make one with `millstream keys add`, or give 127.0.0.1"
    raise InvalidRequest("--host", settings.host, problem)


async def _check_store(gateway: GatewayContext) -> None:
    """Has it in the log if the store cannot be used: only files and batches are refused then, each after a
    new check.
    """
    try:
        await gateway.marker.confirm()
    except TOLD:
        pass
    except MillstreamError as error:
        _log.warning("files cannot be used now", error=str(error))


def _most_requests(wanted: int) -> int:
    """Returns how many requests may run at once. Each takes a file descriptor; their limit is raised first if
    it can be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard > soft:
        needed = wanted + _OWN_FILES
        goal = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, goal), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _OWN_FILES))


def _listener(settings: GatewaySettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise CannotListen(f"cannot listen on {where} ({error}); give another --host or --port") from error


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ignores SIGTERM and SIGINT after uvicorn, which ends in order and then sends itself the signal again:
    the command's end is no failure.
    """
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
