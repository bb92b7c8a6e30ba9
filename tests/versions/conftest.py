"""An earlier and a later build of Millstream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.servers.servers import Server
from support.versions.next_version import Build, next_build, previous_build

from millstream import AsyncClient


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return previous_build(tmp_path_factory.mktemp("builds") / "previous")


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return next_build(tmp_path_factory.mktemp("builds") / "next")
