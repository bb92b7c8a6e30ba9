"""The two kinds of server that all protocol tests run on are really there, and really differ."""

from __future__ import annotations

import redis.asyncio
from support.servers.servers import Server


async def test_server_answers(server: Server, redis_client: redis.asyncio.Redis) -> None:
    info = await redis_client.info("server")
    assert (info.get("server_name") == "valkey") == (server.kind == "valkey")
