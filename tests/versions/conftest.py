"""An earlier and a later build of Millstream, the counting model's tokenizer, a shard on each server."""

from __future__ import annotations

import pytest
import redis.asyncio
from support.desk import Desk
from support.next_version import Build, next_build, previous_build


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return previous_build(tmp_path_factory.mktemp("builds") / "previous")


@pytest.fixture(scope="session")
def later(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return next_build(tmp_path_factory.mktemp("builds") / "next")


@pytest.fixture
async def desk(redis_client: redis.asyncio.Redis) -> Desk:
    return await Desk(redis_client).open()
