"""A server (Valkey, where a test does not ask for `BOTH`), a client of it, and what workers of this process
are given: a tokenizer with a chat template, and input that is read when a test lets it be. Engines that die
are replaced soon."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.servers.servers import Server, running
from support.workers.counting_worker import write_tokenizer
from support.workers.held_reading import HeldReading

from millstream import AsyncClient
from millstream_worker.engine_link import supervisor
from millstream_worker.intake import job_preparer


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.02)


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return running(getattr(request, "param", "valkey"), servers)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("chat-tokenizer"), chat=True)


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldReading]:
    held = HeldReading()
    monkeypatch.setattr(job_preparer, "prepare", held.prepare)
    yield held
    held.go_on.set()
