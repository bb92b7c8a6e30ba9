"""A client and a hand-driven worker of the same queue, on each server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker, hand_worker

from millstream import AsyncClient, ClientOptions


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, options=ClientOptions(name="test-client")) as client:
        yield client


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[HandWorker]:
    async with hand_worker(server.url) as worker:
        yield worker
