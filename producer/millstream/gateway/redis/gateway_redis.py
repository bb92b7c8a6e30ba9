"""The gateway's own connections to the server, beside those of its client."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from millstream.errors import Unavailable
from millstream.logs.failure_log import FailureLog, server_failures
from millstream.wire import calls
from millstream.wire.calls import ScriptCall
from millstream.wire.connection import Endpoint, unavailable
from millstream.wire.server_errors import is_outage

R = TypeVar("R")
NAME = "millstream-gateway"
CONNECTIONS = 32
RETRIES = 3  # every call of the gateway may be repeated


class GatewayRedis:
    """Connects when first used. It tells outages to the log, for all that the gateway does; who gets its
    Unavailable says nothing more.
    """

    def __init__(self, url: str) -> None:
        self._endpoint = Endpoint.of(url)
        self._outage = server_failures()
        self._refusals = FailureLog("server refuses a command")  # as with a full disk; it answers others
        self._told = weakref.WeakSet[Unavailable]()
        self.client: Any = self._endpoint.commands(NAME, connections=CONNECTIONS, retries=RETRIES)

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        """Wraps a use of `client`: converts its errors to Unavailable and AccessDenied."""
        try:
            with unavailable(self._endpoint):
                yield
        except Unavailable as error:
            self.tell(error)
            raise
        self._outage.worked()

    def tell(self, error: Unavailable) -> None:
        """Tells the log, if it is time, of an error that came by a connection of a client of queues. Those
        that `reach` has raised are told already.
        """
        if error in self._told:
            return
        self._told.add(error)
        lasting = isinstance(error.__cause__, Exception) and is_outage(error.__cause__)
        (self._outage if lasting else self._refusals).failed(error=str(error))

    async def run(self, call: ScriptCall[R]) -> R:
        """Raises Unavailable, AccessDenied, ProtocolError."""
        with self.reach():
            return await calls.run(self.client, call)

    async def aclose(self) -> None:
        await self.client.aclose()
