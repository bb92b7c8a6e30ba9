"""Servers with roles, once for each kind; empty for each test, and nothing refused so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.secured import SecuredServer
from support.servers.servers import KINDS, require
from support.workers.work import Work


@pytest.fixture(scope="module", params=KINDS)
def roles_server(request: pytest.FixtureRequest) -> Iterator[SecuredServer]:
    require(request.param)
    with SecuredServer(request.param) as server:
        yield server


@pytest.fixture
def secured(roles_server: SecuredServer) -> SecuredServer:
    roles_server.flush()
    return roles_server


@pytest.fixture
def role_work(secured: SecuredServer, tokenizer: Path, tmp_path: Path) -> Work:
    """Workers that sign in as such."""
    return Work(secured, tokenizer, tmp_path, redis_url=secured.login("worker"))
