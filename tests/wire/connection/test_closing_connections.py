"""A client can be closed also where the loop is too busy to see that its connections have ended."""

from __future__ import annotations

import asyncio

import pytest
from support.servers.servers import Server

from millstream.wire.connection import Endpoint


async def test_a_connection_that_ends_late_is_closed_without_an_error(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = Endpoint.of(valkey.url).commands("late", retries=0)
    assert await redis.ping()
    [connection] = redis.connection_pool._available_connections
    writer = connection._writer

    async def never() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(connection, "socket_connect_timeout", 0.05)
    monkeypatch.setattr(writer, "wait_closed", never)
    await redis.aclose()
    assert writer.is_closing()
    assert not connection.is_connected
