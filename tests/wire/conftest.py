"""A Cluster of each kind of server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.servers.cluster import Cluster
from support.servers.servers import KINDS, require


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    require(request.param)
    with Cluster(request.param) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """Three empty nodes, each slot where it was at first."""
    running.flush()
    return running
