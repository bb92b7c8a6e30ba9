"""A shard to work on, on each kind of server; a Cluster of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis.asyncio
from support.cluster import Cluster
from support.desk import Desk
from support.servers import KINDS, require


@pytest.fixture
async def desk(redis_client: redis.asyncio.Redis) -> Desk:
    return await Desk(redis_client).open()


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
