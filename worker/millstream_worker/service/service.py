"""One worker: its health server, its connections, and the queue that it opens. A `QueueSession` serves the
queue.

SIGTERM once: no new work, running jobs get the grace period. Twice: all jobs are released at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest, ProtocolError, QueueMismatch
from millstream.logs.failure_log import server_failures
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.server_errors import refusal
from millstream.wire.state.queue_info import QueueInfo, open_queue
from millstream.wire.timing import Backoff, ServerClock, within
from millstream.wire.versions import TAKEN
from millstream_worker.jobs.consumer import Consumer
from millstream_worker.observe.health import Health, HealthServer
from millstream_worker.observe.metrics import Metrics
from millstream_worker.observe.server_check import ServerUnfit, check_server
from millstream_worker.observe.watchdog import Watchdog, WatchdogThread
from millstream_worker.service.components import Resources
from millstream_worker.service.queue_session import QueueSession
from millstream_worker.service.stop_signal import StopSignal
from millstream_worker.settings import Settings

_log = structlog.get_logger(__name__)
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class CannotServe(Exception):
    """The worker has to end; the message says why and what to do."""


class Service:
    """`run` once; `drain` from a signal handler, on the loop. `end_stuck` is called from a thread with the
    problem and the engine's process ids, once waiting longer makes no sense. `replace_model`: where the queue
    has another model than this worker.
    """

    def __init__(
        self,
        settings: Settings,
        registry: CollectorRegistry | None = None,
        end_stuck: Callable[[str, Sequence[int]], None] = lambda problem, pids: None,
        *,
        replace_model: bool = False,
    ) -> None:
        self._settings = settings
        self._replace_model = replace_model
        self.name = f"{settings.name or socket.gethostname()}-{token_hex(4)}"
        self._watchdog = Watchdog(settings.stuck_s)
        self._loop_watch = self._watchdog.watch("event loop", _LONGEST_PAUSE_S)
        self.health = Health(self._watchdog)
        self._end_stuck = end_stuck
        self._registry = registry or CollectorRegistry()
        self._metrics = Metrics(self._registry, settings.queue)
        self._clock = ServerClock()
        self._outage = server_failures()
        self._stop = StopSignal()
        self.session: QueueSession | None = None  # once the queue is open

    def drain(self) -> None:
        """Stop taking work, end when the running jobs are done. A second time: release them, end now."""
        self._stop.drain()
        if self.session is not None:
            self.session.wake()

    async def run(self) -> None:
        """Serve until drained. Raises CannotServe if the queue or the model cannot be used."""
        try:
            endpoint = Endpoint.of(self._settings.redis_url)
        except InvalidRequest as error:
            raise CannotServe(str(error)) from error
        server = self._serve_health()
        watchdog_thread = WatchdogThread(self._watchdog, self._settings.stuck_grace_s, self._end_if_stuck)
        watchdog_thread.start()
        redis = endpoint.commands(self.name)
        renewing = endpoint.commands(self.name, connections=1)
        try:
            info = await self._open_queue(endpoint, redis)
            if info is not None:
                resources = self._resources(endpoint, redis, renewing)
                self.session = QueueSession(resources, info, self._stop)
                await self.session.run()
                if self.session.failure:
                    raise CannotServe(self.session.failure)
                _log.info("ended")
        finally:
            watchdog_thread.stop()
            if server is not None:
                server.close()
            if self.session is not None:
                await self.session.aclose()
            for client in (renewing, redis):
                await client.aclose()

    def _end_if_stuck(self, problem: str) -> None:
        self._end_stuck(problem, self.session.components.supervisor.pids if self.session is not None else ())

    def _serve_health(self) -> HealthServer | None:
        host, port = self._settings.metrics_host, self._settings.metrics_port
        if not port:
            return None
        try:
            return HealthServer(host, port, self._registry, self.health)
        except (OSError, OverflowError) as error:
            message = f"metrics_port {port} of {host}: {error}; choose another, or 0 for none"
            raise CannotServe(message) from error

    async def _open_queue(self, endpoint: Endpoint, redis: Any) -> QueueInfo | None:
        """The queue, once the server is there; None if the worker is drained before."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._stop.asked.is_set():
            self._loop_watch.turn()
            try:
                return await self._try_open(redis)
            except (QueueMismatch, ProtocolError, ServerUnfit) as error:
                raise CannotServe(str(error)) from error
            except (RedisError, OSError) as error:
                if (refused := refusal(error)) is not None:
                    raise CannotServe(f"Redis at {endpoint}: {refused}") from error
                self.health.problem = f"Redis at {endpoint}: {error}"
                self._outage.failed(doing="opening the queue", server=str(endpoint), error=str(error))
                await within(self._stop.asked, backoff.next_s())
        return None

    async def _try_open(self, redis: Any) -> QueueInfo:
        settings = self._settings
        await self._clock.sync(redis)
        info = await open_queue(redis, settings.queue, shards=settings.shards, takes=TAKEN)
        await check_server(redis, settings.server_check)
        for shard in info.shard_keys(settings.queue):
            self._loop_watch.turn()
            await calls.run(redis, calls.join(shard))
        return info

    def _resources(self, endpoint: Endpoint, redis: Any, renewing: Any) -> Resources:
        return Resources(
            self._settings,
            endpoint,
            Consumer(redis, self.name, self._outage),
            Consumer(renewing, self.name, self._outage),
            self._clock,
            self._metrics,
            self._watchdog,
            self._loop_watch,
            self.health,
            self._replace_model,
        )
