"""What the tests of stored files share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.servers.servers import Server

from millstream.gateway.access.server_access import ServerAccess
from millstream.gateway.files.file_catalogue import FileCatalogue
from millstream.gateway.files.object_store import ObjectStore


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "store"))


@pytest.fixture
async def access(server: Server) -> AsyncIterator[ServerAccess]:
    made = ServerAccess(server.url)
    yield made
    await made.aclose()


@pytest.fixture
def catalogue(access: ServerAccess) -> FileCatalogue:
    return FileCatalogue(access)
