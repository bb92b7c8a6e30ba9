"""A gateway for each file before a Valkey that is empty for each test, its clients, and a worker by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx2
import openai
import pytest
from support.gateway import Gateway, gateway
from support.servers.servers import Server, running
from support.workers.counting_worker import until
from support.workers.hand_worker import HandWorker, hand_worker, register


@pytest.fixture(scope="module")
def door(servers: dict[str, Server]) -> Iterator[Gateway]:
    """Without keys: it lets everybody in. Its queues are default and other."""
    arguments = ("--queue", "default", "--queue", "other", "--disconnect-grace-s", "0.2", "--timeout-s", "1")
    bounds = ("--max-body-bytes", 100_000, "--max-batch-lines", 200)
    with gateway(running("valkey", servers).url, *arguments, *bounds) as made:
        yield made


@pytest.fixture(autouse=True)
def _empty(valkey: Server) -> None:
    """Tests of other files, which may run between those of one, leave something on the server."""


@pytest.fixture
async def worker(door: Gateway, valkey: Server) -> AsyncIterator[HandWorker]:
    """Of the queue default, which it serves with the checkpoint `m`."""
    async with hand_worker(valkey.url) as made:
        register(valkey.port, made.keys)
        await until(lambda: door.shows_ready(True))  # it looks once a second
        yield made


@pytest.fixture
async def client(door: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with door.client() as made:
        yield made


@pytest.fixture
async def http(door: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=door.url) as made:
        yield made
