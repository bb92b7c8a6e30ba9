"""A shard to work on, on each kind of server."""

from __future__ import annotations

import pytest
import redis.asyncio
from support.desk import Desk


@pytest.fixture
async def desk(redis_client: redis.asyncio.Redis) -> Desk:
    return await Desk(redis_client).open()
