"""What the tests of stored files share."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.gateway import Gateway, gateway
from support.servers.servers import Server, running

from millstream.gateway.files.store.file_catalogue import FileCatalogue
from millstream.gateway.files.store.object_store import ObjectStore
from millstream.gateway.redis.gateway_redis import GatewayRedis


@pytest.fixture(scope="module")
def door(servers: dict[str, Server]) -> Iterator[Gateway]:
    """Without keys: it lets everybody in."""
    with gateway(running("valkey", servers).url, "--max-file-bytes", 300_000) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_objects(request: pytest.FixtureRequest) -> None:
    """Of tests before, which the server does not know any more."""
    if "door" in request.fixturenames:
        door = request.getfixturevalue("door")
        shutil.rmtree(door.folder / "files", ignore_errors=True)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(str(tmp_path / "store"))


@pytest.fixture
async def access(server: Server) -> AsyncIterator[GatewayRedis]:
    made = GatewayRedis(server.url)
    yield made
    await made.aclose()


@pytest.fixture
def catalogue(access: GatewayRedis) -> FileCatalogue:
    return FileCatalogue(access)
