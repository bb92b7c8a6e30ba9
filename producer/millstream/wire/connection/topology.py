"""The known map from slots to nodes of a Cluster.

The map may be outdated at any moment: a node replies MOVED or not at all, and the map is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from redis.crc import REDIS_CLUSTER_HASH_SLOTS
from redis.exceptions import ClusterDownError, ConnectionError, RedisError

from millstream.wire.connection.nodes import Access, ServerNode

REST_S = 0.1  # between two refreshes: many commands may fail for one reason
NEVER = float("-inf")


class Topology:
    """Shared by all connections that one Endpoint opened."""

    def __init__(self, seeds: Sequence[ServerNode], access: Access) -> None:
        self.seeds = tuple(seeds)
        self.access = access
        self._owners: list[ServerNode | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._any: ServerNode | None = None  # a master that answered last
        self._known: list[ServerNode] = list(seeds)  # nodes to ask, in this order
        self._doubted = True
        self._looked_s = NEVER
        self._failure = ""  # of the last refresh; empty if a node answered
        self._looking = asyncio.Lock()

    def __str__(self) -> str:
        return f"Cluster {', '.join(map(str, self.seeds))}"

    def learn(self, slot: int, node: ServerNode) -> None:
        """Record that another node serves this slot, as a MOVED said."""
        self._owners[slot] = node

    def doubt(self, node: ServerNode | None = None) -> None:
        """Mark the map as wrong: it is read again before the next command. `node` had the trouble and is
        asked last: a node that was cut off from the others would return its old map.
        """
        self._doubted = True
        if node in self._known:
            self._known.remove(node)
            self._known.append(node)

    async def node_of(self, slot: int | None) -> ServerNode:
        """The node that serves the slot; any master for None. Raises ClusterDownError if nobody does, and
        ConnectionError if no node answers.
        """
        await self.refresh()
        node = self.known(slot)
        if node is None:
            self.doubt()
            raise ClusterDownError(f"no node of the {self} serves slot {slot}")
        return node

    def known(self, slot: int | None) -> ServerNode | None:
        """The node as far as it is known now, without a read."""
        return self._any if slot is None else self._owners[slot]

    async def refresh(self) -> None:
        """Read the map again if it is in doubt. Raises ConnectionError if no node answers."""
        wanted_s = time.monotonic()
        if not self._doubted:
            return
        async with self._looking:
            if not self._doubted:
                return  # another task was faster
            if self._failure and self._looked_s >= wanted_s:
                raise ConnectionError(self._failure)  # for all that waited for it
            await asyncio.sleep(max(0.0, self._looked_s + REST_S - time.monotonic()))
            troubles = []
            for node in list(self._known):
                try:
                    ranges = await self.access.ask(node, "CLUSTER", "SLOTS")
                except (RedisError, OSError) as error:
                    troubles.append(f"{node}: {error}")
                    continue
                self._settle(node, ranges)
                return
            self._looked_s = time.monotonic()
            self._failure = f"no node of the {self} answers: " + "; ".join(troubles)
            raise ConnectionError(self._failure)

    def _settle(self, asked: ServerNode, ranges: Iterable[Any]) -> None:
        owners: list[ServerNode | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        found = {asked: None}
        for low, high, *nodes in ranges:
            masters = [_node(asked, entry) for entry in nodes]
            owners[low : high + 1] = [masters[0]] * (high + 1 - low)
            found |= dict.fromkeys(masters)
        self._owners = owners
        self._any = asked if asked in owners else next(filter(None, owners), None)
        self._known = list(found | dict.fromkeys(self.seeds))
        self._looked_s = time.monotonic()
        self._failure = ""
        self._doubted = False


def _node(asked: ServerNode, entry: Sequence[Any]) -> ServerNode:
    """A node as another one names it; without a host, the asked node itself."""
    host = (entry[0] or b"").decode()
    return ServerNode(asked.host if host in ("", "?") else host, int(entry[1]))
