"""One server of several, and a single question to it on a separate connection."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, TimeoutError

ASK_S = 2.0  # for connecting and the reply: there are other servers to ask


@dataclass(frozen=True, slots=True, order=True)
class ServerNode:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and TLS options for the servers of one kind; not their addresses."""

    connection_class: type[AbstractConnection]
    options: Mapping[str, Any]

    async def ask(self, node: ServerNode, *command: str) -> Any:
        """Send one command and return its reply. Raises redis-py's errors and OSError."""
        connection: AbstractConnection = self.connection_class(
            **dict(self.options)
            | {
                "host": node.host,
                "port": node.port,
                "socket_timeout": None,
                "socket_connect_timeout": ASK_S,
                "retry": Retry(NoBackoff(), 0),
                "protocol": 2,
                "decode_responses": False,
            }
        )
        try:
            async with asyncio.timeout(ASK_S):
                await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command(*command)
                return await connection.read_response()
        except builtins.TimeoutError:
            raise TimeoutError(f"{node} has not answered for {ASK_S:g} s") from None
        finally:
            await connection.disconnect(nowait=True)


class Sentinels:
    """Asked for each connection: a failover costs a reconnection and nothing more."""

    def __init__(self, service: str, nodes: Sequence[ServerNode], access: Access) -> None:
        self.service = service
        self.nodes = list(nodes)  # the one that answered last is asked first
        self.access = access

    def __str__(self) -> str:
        return f"{self.service!r} of the Sentinels {', '.join(map(str, self.nodes))}"

    async def master(self) -> ServerNode:
        """Raises MasterNotFoundError, a ConnectionError, if none of them names one."""
        troubles = []
        for node in list(self.nodes):
            try:
                address = await self.access.ask(node, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
            except (RedisError, OSError) as error:
                troubles.append(f"{node}: {error}")
                continue
            if address is None:
                troubles.append(f"{node}: knows no {self.service!r}")
                continue
            self.nodes.remove(node)
            self.nodes.insert(0, node)
            return ServerNode(address[0].decode(), int(address[1]))
        raise MasterNotFoundError("no Sentinel names a master: " + "; ".join(troubles))
