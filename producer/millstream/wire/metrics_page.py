"""Serves a registry's series over HTTP, in Prometheus' text format or as OpenMetrics, whichever is asked for.
Shared by workers, gateways and exporters.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

OPEN_METRICS = "application/openmetrics-text"
_PATIENCE_S = 10.0  # for a client that neither sends nor reads


def encoded(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Returns the page and its content type for a request's Accept header."""
    encode, content_type = choose_encoder(known(accept))
    return encode(registry), content_type


def known(accept: str) -> str:
    """Reduces an Accept header to what is served: the library raises at some versions, and repeats others."""
    return f"{OPEN_METRICS}; version=1.0.0" if OPEN_METRICS in accept else ""


def metrics_page(registry: CollectorRegistry) -> WSGIApplication:
    """Makes the page for a WSGI server."""
    page: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        return page(environ | {"HTTP_ACCEPT": known(environ.get("HTTP_ACCEPT", ""))}, respond)

    return answer


class PageServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, so that no slow client delays another."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class SilentHandler(WSGIRequestHandler):
    """Logs no requests."""

    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:
        return


def listen(host: str, port: int, page: WSGIApplication) -> WSGIServer:
    """Returns a server that listens; `serve_forever` answers. Raises OSError, OverflowError."""
    return make_server(host, port, page, PageServer, SilentHandler)
