"""A server address, and the connections for each purpose.

Commands, blocking reads and subscriptions never share a connection: a blocking read would delay all others,
and a subscription can send nothing else. redis-py's silent defaults are explicit here: it re-sends failed
commands (only calls that are safe to repeat may ask for `retries`), and its read timeout ends a longer BLOCK
with an error (a blocking pool waits longer than its reads do). RESP2 everywhere: the replies of RESP3 have
other shapes, and nothing here needs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import MovedError, RedisError

from millstream.errors import AccessDenied, Unavailable
from millstream.wire.connection.cluster import ClusterClient
from millstream.wire.connection.nodes import Sentinels, ServerNode
from millstream.wire.connection.redis_connections import ClosingPool, followed, reliable
from millstream.wire.connection.target import place_of
from millstream.wire.connection.topology import Topology
from millstream.wire.server_errors import refusal

CONNECT_S = 5.0
POOL_WAIT_S = 30.0  # for a free connection, before an error
BLOCK_MARGIN_S = 5.0  # the reply of a blocking read may be this late
# Commands that a Cluster's node did not execute (its slot moves) are sent again for this long if the caller
# repeats, too.
BRIEFLY_S = 0.5


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server's address and credentials: one server, the master that `sentinels` name, or the nodes of a
    Cluster (`topology`). Opens connections of one purpose each; keeps none.
    """

    connection_class: type[AbstractConnection]
    options: Mapping[str, Any]
    sentinels: Sentinels | None = None
    topology: Topology | None = None

    @classmethod
    def of(cls, target: object) -> Endpoint:
        """From a URL (redis, rediss, unix, redis+sentinel, redis+cluster, …), or the address of a client of
        redis-py (Redis, also of a Sentinel's master_for; RedisCluster).

        Raises InvalidRequest for anything else.
        """
        place = place_of(target)
        sentinels = Sentinels(place.service, place.nodes, place.sentinels) if place.sentinels else None
        topology = Topology(place.nodes, place.access) if place.nodes and not sentinels else None
        return cls(place.access.connection_class, place.access.options, sentinels, topology)

    def __str__(self) -> str:
        if self.sentinels is not None or self.topology is not None:
            return str(self.sentinels or self.topology)
        if "path" in self.options:
            return f"{self.options['path']} (unix socket)"
        return f"{self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"

    def commands(
        self, name: str, *, connections: int = 16, timeout_s: float = 5.0, retries: int = 0
    ) -> Redis:
        """For commands that return at once. `retries` after a lost connection: only for repeatable calls."""
        return self._client(name, connections, timeout_s, retries)

    def blocking(self, name: str, *, block_s: float) -> Redis:
        """For reads that block up to `block_s` (XREADGROUP … BLOCK): one connection, never re-sent. In a
        Cluster: for the keys of one slot."""
        return self._client(name, 1, block_s + BLOCK_MARGIN_S, 0)

    def subscriber(self, name: str, node: ServerNode | None = None) -> AbstractConnection:
        """One connection for subscriptions, not yet connected, never reconnecting by itself; in a Cluster to
        `node`.

        Its user sets timeouts around each call. With its own timeout, redis-py would send inside
        `asyncio.wait_for`, which in Python 3.11 may swallow the cancellation of the task.
        """
        settings = self._settings(name, CONNECT_S, 0, node) | {"socket_timeout": None}
        return self._kind()(**settings)

    def _client(self, name: str, connections: int, timeout_s: float, retries: int) -> Redis:
        if self.topology is None:
            return Redis.from_pool(self._pool(name, connections, timeout_s, retries))
        client = ClusterClient(
            self.topology,
            lambda node: Redis.from_pool(self._pool(name, connections, timeout_s, 0, node)),
            retries=retries,
            patience_s=timeout_s if retries else BRIEFLY_S,
        )
        return cast(Redis, client)  # the same methods

    def _pool(
        self, name: str, connections: int, timeout_s: float, retries: int, node: ServerNode | None = None
    ) -> ConnectionPool:
        return ClosingPool(
            max_connections=connections,
            timeout=POOL_WAIT_S,
            connection_class=reliable(self._kind()),
            **self._settings(name, timeout_s, retries, node),
        )

    def _kind(self) -> type[AbstractConnection]:
        if self.sentinels is None:
            return self.connection_class
        return followed(self.connection_class, self.sentinels)

    def _settings(self, name: str, timeout_s: float, retries: int, node: ServerNode | None) -> dict[str, Any]:
        backoff = ExponentialWithJitterBackoff(base=0.05, cap=1.0) if retries else NoBackoff()
        address = {} if node is None else {"host": node.host, "port": node.port}
        return (
            dict(self.options)
            | address
            | {
                "socket_timeout": timeout_s,
                "socket_connect_timeout": min(timeout_s, CONNECT_S),
                "retry": Retry(backoff, retries),
                "client_name": name,
                "protocol": 2,
                "decode_responses": False,
            }
        )


@contextlib.contextmanager
def unavailable(endpoint: Endpoint) -> Iterator[None]:
    """Converts errors of redis-py and of the network to Unavailable or AccessDenied."""
    try:
        yield
    except (RedisError, OSError) as error:
        if (refused := refusal(error)) is not None:
            raise AccessDenied(f"Redis at {endpoint}: {refused}") from error
        detail = str(error) or type(error).__name__
        if isinstance(error, MovedError) and endpoint.topology is None:
            detail = "this is a node of a Cluster; connect by redis+cluster://host:port,host:port"
        raise Unavailable(f"Redis at {endpoint}: {detail}") from error
