"""Servers with roles, once for each kind; empty for each test, and nothing refused so far."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.servers.secured import SecuredServer
from support.servers.servers import KINDS, binary


@pytest.fixture(scope="module", params=KINDS)
def roles_server(request: pytest.FixtureRequest) -> Iterator[SecuredServer]:
    if binary(request.param) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{request.param}-server is not on the PATH")
    server = SecuredServer(request.param).start()
    yield server
    server.remove()


@pytest.fixture
def secured(roles_server: SecuredServer) -> SecuredServer:
    roles_server.flush()
    return roles_server
