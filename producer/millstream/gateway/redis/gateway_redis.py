"""The gateway's own connections to the server, beside those of its client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from millstream.wire import calls
from millstream.wire.calls import ScriptCall
from millstream.wire.connection import Endpoint, unavailable

R = TypeVar("R")
NAME = "millstream-gateway"
CONNECTIONS = 32
RETRIES = 3  # every call of the gateway may be repeated


class GatewayRedis:
    """Connects when first used."""

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint.of(url)
        self.client: Any = self._endpoint.commands(NAME, connections=CONNECTIONS, retries=RETRIES)

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        """Wraps a use of `client`: converts its errors to Unavailable and AccessDenied."""
        with unavailable(self._endpoint):
            yield

    async def run(self, call: ScriptCall[R]) -> R:
        """Raises Unavailable, AccessDenied, ProtocolError."""
        with self.reach():
            return await calls.run(self.client, call)

    async def aclose(self) -> None:
        await self.client.aclose()
