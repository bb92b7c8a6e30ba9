"""Stands before a gateway, forwards whatever a program sends, and keeps it with the answer."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from conformance.watch.exchanges import TIMEOUT_S, Exchange

OF_CONNECTION = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding", "keep-alive"}


@dataclass(slots=True)
class Forwarder:
    url: str
    exchanges: list[Exchange] = field(default_factory=list)  # in the order of their ends


@contextlib.contextmanager
def forwarding(url: str) -> Iterator[Forwarder]:
    """A server on a port of its own; `url`: the gateway's."""
    host = urlsplit(url).netloc
    made = Forwarder("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a program that ends leaves its connections
                super().handle()

        def do_GET(self) -> None:
            made.exchanges.append(_forwarded(self, host))

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # a client may leave its connections open
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _forwarded(client: BaseHTTPRequestHandler, host: str) -> Exchange:
    body = client.rfile.read(int(client.headers.get("content-length") or 0))
    headers = {name: value for name, value in client.headers.items() if name.lower() not in OF_CONNECTION}
    with contextlib.closing(http.client.HTTPConnection(host, timeout=TIMEOUT_S)) as connection:
        connection.request(client.command, client.path, body, headers)
        answer = connection.getresponse()
        client.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in OF_CONNECTION:
                client.send_header(name, value)
        client.send_header("transfer-encoding", "chunked")
        client.end_headers()
        told = b""
        while part := answer.read1(65_536):
            told += part
            _write(client, b"%x\r\n%b\r\n" % (len(part), part))
    _write(client, b"0\r\n\r\n")
    return Exchange(client.path, json.loads(body) if body else {}, answer.status, told)


def _write(client: BaseHTTPRequestHandler, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it has enough of a stream: the rest is judged all the same
        client.wfile.write(data)
