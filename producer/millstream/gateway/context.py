"""What endpoints work with: made once, shared by all requests of a gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from millstream.client.session.options import ClientOptions
from millstream.gateway.auth.authenticator import Callers
from millstream.gateway.auth.idempotency import Posts
from millstream.gateway.auth.rate_limits import Allowances
from millstream.gateway.cpu_executor import CpuExecutor
from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.files.store.orphans import Orphans
from millstream.gateway.files.store.store_marker import StoreMarker
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.queues.queue_clients import QueueClient, QueueClients
from millstream.gateway.queues.queue_directory import QueueDirectory
from millstream.gateway.redis.gateway_redis import NAME, ServerAccess


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    access: ServerAccess
    clients: QueueClients
    callers: Callers
    allowances: Allowances
    posts: Posts
    directory: QueueDirectory
    store: ObjectStore
    files: FileCatalogue
    marker: StoreMarker
    orphans: Orphans
    executor: CpuExecutor
    metrics: GatewayMetrics

    @classmethod
    def of(cls, settings: GatewaySettings, metrics: GatewayMetrics) -> Services:
        """Connects when first used; see `aclose`."""
        access = ServerAccess(settings.redis_url)
        store, files = ObjectStore(settings.files_url), FileCatalogue(access)
        marker = StoreMarker(access, store)
        return cls(
            settings,
            access,
            QueueClients(QueueClient(settings.redis_url, options=ClientOptions(name=NAME))),
            Callers(access, open_door=settings.on_loopback),
            Allowances(access, settings.timeout_s),
            Posts(access),
            QueueDirectory(access, settings.queues),
            store,
            files,
            marker,
            Orphans(access, store, files, marker),
            CpuExecutor(metrics),
            metrics,
        )

    async def attend(self) -> None:
        """What goes on beside requests, for ever."""
        async with asyncio.TaskGroup() as group:
            for one in (self.posts, self.directory, self.orphans):
                group.create_task(one.attend())

    async def aclose(self) -> None:
        self.executor.close()
        await self.clients.aclose()
        await self.access.aclose()
