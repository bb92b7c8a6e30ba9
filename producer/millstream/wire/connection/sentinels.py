"""The current master of a service, as its Sentinels name it."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import RedisError

from millstream.wire.connection.nodes import Access, ServerNode


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
