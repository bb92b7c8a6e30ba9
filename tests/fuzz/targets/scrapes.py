"""What is sent to the port of a worker's metrics."""

from __future__ import annotations

import contextlib
import socket
from functools import cache
from random import Random

from prometheus_client import CollectorRegistry, Counter

from fuzz.mutation import damage
from fuzz.target import Refused, Target
from fuzz.values import blob, weighted
from millstream_worker.observe.health import Health, HealthServer
from millstream_worker.observe.watchdog import Watchdog

_WAIT_S = 30.0
_PATHS = (b"/metrics", b"/healthz", b"/readyz", b"/", b"/metrics?name[]=x", b"/%ff", b"/\xff", b"//", b"*")
_HEADERS = (
    b"Host: x", b"Accept: text/plain", b"Content-Length: 5", b"Content-Length: x", b"Accept-Encoding: gzip",
    b"X: \xff", b"Accept: application/openmetrics-text;version=1.0.0",
    b"Accept: application/openmetrics-text;version=x",
)  # fmt: skip


def _request(chance: Random) -> bytes:
    method = chance.choice((b"GET", b"GET", b"GET", b"HEAD", b"POST", b"\x00"))
    version = chance.choice((b" HTTP/1.1", b" HTTP/1.0", b"", b" HTTP/9.9"))
    headers = b"".join(header + b"\r\n" for header in chance.sample(_HEADERS, chance.randrange(3)))
    whole = method + b" " + chance.choice(_PATHS) + version + b"\r\n" + headers + b"\r\n"
    return weighted(chance, (3, lambda _: whole), (3, lambda c: damage(c, whole)), (1, blob))


@cache
def _server() -> HealthServer:
    registry = CollectorRegistry()
    Counter("fuzzed", "of one value", registry=registry).inc()
    return HealthServer("127.0.0.1", 0, registry, Health(Watchdog(limit_s=1e9), ""))


def _scrape(data: bytes) -> None:
    answer = _ask(data)
    assert _ask(b"GET /healthz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 200"), "it answers nobody any more"
    if not answer.startswith((b"HTTP/1.0 2", b"HTTP/1.1 2")):
        raise Refused(repr(answer[:60]))


def _ask(data: bytes) -> bytes:
    """The whole answer to this and nothing more."""
    answer = b""
    with socket.create_connection(("127.0.0.1", _server().port), timeout=_WAIT_S) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it has not read all of it
            while more := client.recv(1 << 16):
                answer += more
    return answer


TARGETS = (Target("scrapes", _request, _scrape, (Refused,), share=0.05),)
