"""A client for each queue, which knows the queue's shape, what its workers take and how fast it empties."""

from __future__ import annotations

from millstream.client.async_client import AsyncClient


class QueueClients(dict[str, AsyncClient]):
    """By queue, made when first used; all share one client's connections."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self._client = client

    def __missing__(self, queue: str) -> AsyncClient:
        return self.setdefault(queue, self._client.with_queue(queue))

    async def aclose(self) -> None:
        await self._client.aclose()
