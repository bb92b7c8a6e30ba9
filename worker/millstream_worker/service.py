"""One worker: its health, its connections and its queue; when the queue is open, it serves.

SIGTERM once: no new work, running jobs get the grace period. Twice: everything is given back at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from secrets import token_hex

import structlog
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.wire import calls
from millstream.wire.access import refusal
from millstream.wire.connection import Endpoint
from millstream.wire.queue_info import QueueInfo, open_queue
from millstream.wire.timing import Backoff, ServerClock, within
from millstream.wire.versions import TAKEN
from millstream_worker.capacity import Capacity
from millstream_worker.engine_link import EnginePort
from millstream_worker.health import Health, HealthServer
from millstream_worker.metrics import Metrics
from millstream_worker.parts import Shared
from millstream_worker.server_check import ServerUnfit, check_server
from millstream_worker.serving import Serving, Stop, shards_of
from millstream_worker.settings import Settings
from millstream_worker.table import JobTable
from millstream_worker.trouble import server_trouble
from millstream_worker.vitals import Looker, Vitals

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class CannotServe(Exception):
    """The worker has to end; the message says why and what to do."""


class Service:
    """`run` once; `drain` from a signal handler, on the loop. `end_stuck` is called from a thread with what
    stands still and the engine's pid, when there is no point in waiting for it any longer.
    """

    def __init__(
        self,
        settings: Settings,
        registry: CollectorRegistry | None = None,
        end_stuck: Callable[[str, Sequence[int]], None] = lambda problem, pids: None,
    ) -> None:
        self._settings = settings
        self.name = f"{settings.name or socket.gethostname()}-{token_hex(4)}"
        self._vitals = Vitals(settings.stuck_s)
        self._loop_vital = self._vitals.watch("event loop", _LONGEST_PAUSE_S)
        self.health = Health(self._vitals)
        self._end_stuck = end_stuck
        self._registry = registry or CollectorRegistry()
        self._metrics = Metrics(self._registry, settings.queue)
        self._clock = ServerClock()
        self._engine = EnginePort()
        self._table = JobTable(self._engine)
        self._capacity = Capacity(self._table, self._engine, settings.lookahead)
        self._serving: Serving | None = None  # since the queue is known
        self._stop = Stop()
        self._outage = server_trouble()

    def drain(self) -> None:
        """Stop taking work, end when the running jobs are done. A second time: give them back, end now."""
        if self._stop.asked.is_set():
            self._stop.hurried.set()
            self._table.changed.set()
        self._stop.asked.set()

    async def run(self) -> None:
        """Serve until drained. Raises CannotServe where the queue or the model cannot be used."""
        settings = self._settings
        try:
            self._endpoint = Endpoint.of(settings.redis_url)
        except InvalidRequest as error:
            raise CannotServe(str(error)) from error
        server = self._serve_health()
        looker = Looker(self._vitals, self._settings.stuck_grace_s, self._end_if_stuck)
        looker.start()
        self._redis = self._endpoint.commands(self.name)
        self._renewing = self._endpoint.commands(self.name, connections=1)  # waits behind nobody's commands
        try:
            info = await self._open_queue()
            if info is not None:
                self._serving = Serving(self._share(), info, self._stop, self.health, self._loop_vital)
                await self._serving.run()
                if self._serving.failure:
                    raise CannotServe(self._serving.failure)
                _log.info("ended")
        finally:
            looker.stop()
            if server is not None:
                server.close()
            if self._serving is not None:
                await self._serving.aclose()
            for client in (self._renewing, self._redis):
                await client.aclose()

    def _end_if_stuck(self, problem: str) -> None:
        self._end_stuck(problem, self._serving.parts.supervisor.pids if self._serving is not None else ())

    def _serve_health(self) -> HealthServer | None:
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if not port:
            return None
        try:
            return HealthServer(host, port, self._registry, self.health)
        except (OSError, OverflowError) as error:
            message = f"metrics_port {port} of {host}: {error}; choose another, or 0 for none"
            raise CannotServe(message) from error

    async def _open_queue(self) -> QueueInfo | None:
        """The queue, as soon as the server is there; None where the worker is drained before."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._stop.asked.is_set():
            self._loop_vital.turn()
            try:
                await self._clock.sync(self._redis)
                info = await open_queue(
                    self._redis, self._settings.queue, shards=self._settings.shards, takes=TAKEN
                )
                await check_server(self._redis, self._settings.server_check)
                for shard in shards_of(self._settings.queue, info):
                    self._loop_vital.turn()
                    await calls.run(self._redis, calls.join(shard))
                return info
            except (QueueMismatch, ProtocolError, ServerUnfit) as error:
                raise CannotServe(str(error)) from error
            except (RedisError, OSError) as error:
                if (refused := refusal(error)) is not None:
                    raise CannotServe(f"Redis at {self._endpoint}: {refused}") from error
                self.health.problem = f"Redis at {self._endpoint}: {error}"
                self._outage.failed(doing="opening the queue", server=str(self._endpoint), error=str(error))
                await within(self._stop.asked, backoff.next_s())
        return None

    def _share(self) -> Shared:
        return Shared(
            self._settings,
            self.name,
            self._endpoint,
            self._redis,
            self._renewing,
            self._table,
            self._engine,
            self._capacity,
            self._clock,
            self._metrics,
            self._vitals,
            self._outage,
        )
