"""Makes the objects that endpoints work with: once, for all requests of a gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millstream.client.session.options import ClientOptions
from millstream.gateway.auth.authenticator import Authenticator
from millstream.gateway.auth.idempotency import Idempotency
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


@dataclass(frozen=True, slots=True)
class GatewayContext:
    settings: GatewaySettings
    redis: GatewayRedis
    clients: QueueClients
    authenticator: Authenticator
    rate_limits: RateLimits
    idempotency: Idempotency
    directory: QueueDirectory
    store: ObjectStore
    files: FileCatalogue
    marker: StoreMarker
    orphans: Orphans
    executor: CpuExecutor
    metrics: GatewayMetrics

    @classmethod
    def of(cls, settings: GatewaySettings, metrics: GatewayMetrics) -> GatewayContext:
        """Makes a context. It connects when first used; see `aclose`."""
        redis = GatewayRedis(settings.redis_url)
        clients = QueueClients(QueueClient(settings.redis_url, options=ClientOptions(name=NAME)))
        store, files = ObjectStore(settings.files_url), FileCatalogue(redis)
        marker = StoreMarker(redis, store)
        return cls(
            settings,
            redis,
            clients,
            Authenticator(redis, open_door=settings.on_loopback),
            RateLimits(redis, clients),
            Idempotency(redis),
            QueueDirectory(redis, settings.queues),
            store,
            files,
            marker,
            Orphans(redis, store, files, marker),
            CpuExecutor(metrics),
            metrics,
        )

    async def run(self) -> None:
        """Runs what goes on beside requests, for ever."""
        async with asyncio.TaskGroup() as group:
            for one in (self.idempotency, self.directory, self.orphans):
                group.create_task(one.run())

    async def aclose(self) -> None:
        self.executor.close()
        await self.clients.aclose()
        await self.redis.aclose()
