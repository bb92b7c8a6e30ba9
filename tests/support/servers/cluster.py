"""A Cluster of masters without replicas, as processes of the tests' own; slots can be moved, in one go or
step by step. All methods block: from asynchronous tests call them by `asyncio.to_thread`.
"""

from __future__ import annotations

from typing import Any, Self

from redis.crc import key_slot

from support.servers.lifetime import Startable, ask, wait_for
from support.servers.servers import Server, free_port

SLOTS = 16384
TAGS = [f"{{{letter}}}" for letter in "abcdefgh"]  # their slots are on all nodes of three


class Cluster(Startable):
    """`start` (or `with`) and `remove`. `servers` are the masters, each with an equal share of the slots.

    `kind` is "valkey" or "redis"; `options` go to the servers (`appendonly="yes"`). A server that was killed
    is started again by its own `start`, with the slots it had.
    """

    def __init__(self, kind: str, masters: int = 3, **options: str) -> None:
        self.kind = kind
        self.servers = [ClusterServer(kind, **options) for _ in range(masters)]
        self._moved: set[int] = set()

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.start()
        first = self.servers[0]
        for number, server in enumerate(self.servers):
            low, high = (-(-SLOTS * part // len(self.servers)) for part in (number, number + 1))
            server.ask("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if server is not first:
                server.ask("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)
        self.wait_ok()
        return self

    def remove(self) -> None:
        for server in self.servers:
            server.remove()

    def flush(self) -> None:
        """Empty data on all nodes, and every slot where it was at first: what a test starts from."""
        for server in self.servers:
            server.ask("FLUSHALL")
            server.ask("SCRIPT", "FLUSH")
        for slot in sorted(self._moved):
            source, home = self._owner(slot), (slot * len(self.servers)) // SLOTS
            if source != home:
                migration = Migration(self, slot, source, home)
                migration.begin()
                migration.end()
        self._moved.clear()

    def wait_ok(self) -> None:
        """Until every node knows all others and serves all slots."""
        wait_for(lambda: all(self._is_ok(server) for server in self.servers), "the cluster is whole")

    def owner(self, key: str) -> Server:
        """The node that serves the key's slot, as the nodes themselves say."""
        return self.servers[self._owner(key_slot(key.encode()))]

    def move_slot(self, key: str, to: int | None = None) -> int:
        """Move the slot of `key`, with all its keys, to `servers[to]` (None: the next node). Returns `to`."""
        migration = self.migration(key, to)
        migration.begin()
        while migration.move_keys():
            pass
        migration.end()
        return migration.to

    def migration(self, key: str, to: int | None = None) -> Migration:
        """The same step by step: begin, move_keys as often as wanted, end."""
        slot = key_slot(key.encode())
        source = self._owner(slot)
        self._moved.add(slot)
        return Migration(self, slot, source, (source + 1) % len(self.servers) if to is None else to)

    def _owner(self, slot: int) -> int:
        live = next(server for server in self.servers if server.process is not None)
        for low, high, master, *_ in live.ask("CLUSTER", "SLOTS"):
            if low <= slot <= high:
                return next(i for i, server in enumerate(self.servers) if server.port == master[1])
        raise RuntimeError(f"nobody serves slot {slot}")

    def _is_ok(self, server: Server) -> bool:
        answer = server.ask("CLUSTER", "INFO").decode()  # type: ignore[attr-defined]
        fields = dict(line.split(":", 1) for line in answer.split())
        known = int(fields["cluster_known_nodes"])
        return fields["cluster_state"] == "ok" and known == len(self.servers)


class ClusterServer(Server):
    """One node. Its bus has a free port of its own."""

    def __init__(self, kind: str, **options: str) -> None:
        self.bus_port = free_port()
        bus = str(self.bus_port)
        super().__init__(
            kind, cluster_enabled="yes", cluster_port=bus, cluster_node_timeout="2000", **options
        )

    @property
    def id(self) -> str:
        name: bytes = self.ask("CLUSTER", "MYID")
        return name.decode()

    def ask(self, *command: Any) -> Any:
        return ask(self.port, *command)


class Migration:
    """Of one slot, from `servers[source]` to `servers[to]`. While it is open, commands for keys that have
    gone are answered ASK, and commands of several keys that are not all in one place TRYAGAIN."""

    def __init__(self, cluster: Cluster, slot: int, source: int, to: int) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = source
        self.to = to

    def begin(self) -> None:
        source, to = self.cluster.servers[self.source], self.cluster.servers[self.to]
        to.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", to.id)

    def move_keys(self, most: int = 100) -> int:
        """Move up to `most` keys; how many there were."""
        source, to = self.cluster.servers[self.source], self.cluster.servers[self.to]
        keys = source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, most)
        if keys:
            source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def end(self) -> None:
        """The slot is the new node's: it is told first, then the old one, then the rest."""
        to = self.cluster.servers[self.to]
        others = [server for server in self.cluster.servers if server is not to]
        others.sort(key=lambda server: server is not self.cluster.servers[self.source])
        for server in (to, *others):
            if server.process is not None:
                server.ask("CLUSTER", "SETSLOT", self.slot, "NODE", to.id)
