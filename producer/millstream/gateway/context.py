"""Makes the objects that endpoints work with: once, for all requests of a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Never

from millstream.client.session.options import ClientOptions
from millstream.gateway.auth.authenticator import Authenticator
from millstream.gateway.auth.idempotency import Idempotency
from millstream.gateway.auth.open_door import OpenDoor
from millstream.gateway.auth.rate_limits import RateLimits
from millstream.gateway.cpu_executor import CpuExecutor
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.files.store.orphans import Orphans
from millstream.gateway.files.store.store_marker import StoreMarker
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.queues.queue_clients import QueueClient, QueueClients
from millstream.gateway.queues.queue_directory import QueueDirectory
from millstream.gateway.redis.gateway_redis import NAME, GatewayRedis
from millstream.logs.failure_log import FailureLog
from millstream.logs.log_setup import withheld

AGAIN_S = 5.0


class GatewayContext:
    """It connects when first used; see `aclose`."""

    def __init__(self, settings: GatewaySettings, metrics: GatewayMetrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.redis = redis = GatewayRedis(settings.redis_url)
        self.clients = QueueClients(QueueClient(settings.redis_url, options=ClientOptions(name=NAME)))
        door = OpenDoor(settings.allow_origins) if settings.keyless else None
        self.authenticator = Authenticator(redis, door)
        self.rate_limits = RateLimits(redis, self.clients)
        self.idempotency = Idempotency(redis)
        self.directory = QueueDirectory(redis, settings.queues, settings.own_queue)
        self.store = ObjectStore(settings.files_url)
        self.files = FileCatalogue(redis)
        self.marker = StoreMarker(redis, self.store)
        self.orphans = Orphans(redis, self.store, self.files, self.marker)
        self.executor = CpuExecutor(metrics)

    async def run(self) -> None:
        """Runs what goes on beside requests, for ever."""
        async with asyncio.TaskGroup() as group:
            for one in (self.idempotency, self.directory, self.orphans):
                group.create_task(_lasting(type(one).__name__, one.run))

    async def aclose(self) -> None:
        self.executor.close()
        await self.clients.aclose()
        await self.redis.aclose()


async def _lasting(name: str, run: Callable[[], Awaitable[None]]) -> Never:
    """Runs it again after whatever it raises: nothing that a record holds ends a gateway."""
    failures = FailureLog("background task failed; it is started again")
    while True:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 — it is in the log
            failures.failed(task=name, again_s=AGAIN_S, exc_info=withheld(error))
        await asyncio.sleep(AGAIN_S)
