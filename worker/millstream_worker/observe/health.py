"""The operator's endpoints: `/metrics`, `/healthz` (the process works: restart it if not) and `/readyz` (it
can take jobs; seconds since it last read the queue, renewed its leases and got a step). Served from a thread
of its own, so that a scrape neither waits for the loop nor delays it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from millstream.wire.metrics_page import listen, metrics_page
from millstream_worker.observe.watchdog import Watchdog

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_SUCCESSES = ("read", "renewal", "step")


@dataclass(slots=True)
class Health:
    """Written by the loop, read by the server's threads. `problem`: the reason why no jobs are taken; empty
    if there is none.
    """

    watchdog: Watchdog
    problem: str = "starting"

    def successes(self) -> str:
        """One line each: seconds since the last success."""
        last = dict(self.watchdog.last())
        return "".join(
            f"last {name}: {'never' if (ago := last.get(name)) is None else f'{ago:.1f} s ago'}\n"
            for name in _SUCCESSES
        )


class HealthServer:
    """Listens from its construction; `port` is the real one if 0 was asked for."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, health: Health) -> None:
        # The creation times of all counters and histograms, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=registry)  # of the front; the engine is a process of its own
        self._metrics = metrics_page(registry)
        self._health = health
        self._server = listen(host, port, self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: WSGIEnvironment, respond: StartResponse) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return self._metrics(environ, respond)
            case "/healthz":
                return _plain(respond, self._health.watchdog.problem)
            case "/readyz":
                return _plain(respond, self._health.problem, self._health.successes())
            case _:
                respond("404 Not Found", [("Content-Type", "text/plain")])
                return [b"/metrics, /healthz or /readyz\n"]


def _plain(respond: StartResponse, problem: str, more: str = "") -> list[bytes]:
    respond("503 Service Unavailable" if problem else "200 OK", [("Content-Type", "text/plain")])
    return [f"{problem or 'ok'}\n{more}".encode()]
