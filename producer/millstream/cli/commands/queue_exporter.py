"""`millstream queue --metrics-port`: serves a queue's series to Prometheus, with or without workers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from millstream.cli.display.terminal import say
from millstream.client.async_client import AsyncClient
from millstream.client.session.queue_scrape import QueueScrape
from millstream.errors import InvalidRequest, Unavailable
from millstream.wire.metrics_page import listen, metrics_page
from millstream.wire.state.queue_series import QueueSeries

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

OPTION = "--metrics-port"
HOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?:(?P<host>[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):)?(?P<port>[0-9]{1,5})", re.ASCII)
_PATIENCE_S = 10.0  # for the loop, which reads the queue


async def export_queue(client: AsyncClient, queue: str, address: str) -> None:
    """Serves until SIGTERM or Ctrl-C. A server that does not answer shows as `millstream_queue_up 0`. Raises
    InvalidRequest for an address that cannot be used, AccessDenied.
    """
    registry = CollectorRegistry()
    scrape = QueueScrape(QueueSeries(registry), {queue: client.queue_info})
    page = _refreshed(scrape, metrics_page(registry), asyncio.get_running_loop())
    with _listening(address, page) as where:
        with contextlib.suppress(Unavailable):
            await client.queue_info()
        say(f"the metrics of queue {queue} are at {where}/metrics, until Ctrl-C")
        await _terminated()


def _refreshed(
    scrape: QueueScrape, page: WSGIApplication, loop: asyncio.AbstractEventLoop
) -> WSGIApplication:
    """The page in a thread of the server, of figures that the loop reads."""

    def answer(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            respond("404 Not Found", [("Content-Type", "text/plain")])
            return [b"/metrics\n"]
        asyncio.run_coroutine_threadsafe(scrape.refresh(), loop).result(_PATIENCE_S)
        return page(environ, respond)

    return answer


@contextlib.contextmanager
def _listening(address: str, page: WSGIApplication) -> Iterator[str]:
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise InvalidRequest(OPTION, address, "must be a port, as 9401, or host:port, as 0.0.0.0:9401")
    host = found["host"] or HOST
    try:
        server = listen(host.strip("[]"), int(found["port"]), page)
    except (OSError, OverflowError) as error:
        raise InvalidRequest(OPTION, address, f"cannot be listened on ({error}); give another") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def _terminated() -> None:
    """Waits for SIGTERM; Ctrl-C cancels the wait."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
