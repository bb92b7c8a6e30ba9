"""A gateway's own connections, as the tests of its records use them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.servers.servers import Server

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.redis.gateway_redis import GatewayRedis


@pytest.fixture
async def access(valkey: Server) -> AsyncIterator[GatewayRedis]:
    made = GatewayRedis(valkey.url)
    yield made
    await made.aclose()


@pytest.fixture
def catalogue(access: GatewayRedis) -> BatchCatalogue:
    return BatchCatalogue(access)
