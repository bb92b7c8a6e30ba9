"""Connections to the server: one pool per purpose, with every timeout and retry stated.

Commands, blocking reads and subscriptions never share a connection: a read that blocks would hold up all
others, and a subscription can send nothing else. What redis-py does silently is set here in the open: it
re-sends failed commands (only calls that are safe to repeat may ask for `retries`), and its read timeout
ends a longer BLOCK with an error (a blocking pool waits longer than its reads do). RESP2 everywhere: the
replies of RESP3 have other shapes, and nothing here needs it.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import RedisError, TimeoutError

from millstream.errors import InvalidRequest, Unavailable

CONNECT_S = 5.0
POOL_WAIT_S = 30.0  # for a free connection, before the caller is told
BLOCK_MARGIN_S = 5.0  # a blocking read's answer may be this late
# What is taken over from a URL or a client; TLS options (ssl_*) are too. All else is decided here.
ADDRESS = frozenset({"host", "port", "path", "db", "username", "password", "credential_provider"})


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server: where it is and how to sign in. Opens connections of one purpose each; keeps none."""

    connection_class: type[AbstractConnection]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, target: str | Redis) -> Endpoint:
        """From a redis://, rediss:// or unix:// URL, or the address and credentials of a redis-py client.

        Raises InvalidRequest where the URL is none, or the client is not of one plain server.
        """
        if isinstance(target, str):
            return cls._of_url(target)
        pool: object = getattr(target, "connection_pool", None)  # a Cluster has none
        if not isinstance(pool, ConnectionPool) or isinstance(pool, SentinelConnectionPool):
            raise InvalidRequest("url", target, "give a Redis URL or a redis.asyncio.Redis of one server")
        return cls(pool.connection_class, {k: v for k, v in pool.connection_kwargs.items() if _kept(k)})

    @classmethod
    def _of_url(cls, url: str) -> Endpoint:
        try:
            options: dict[str, Any] = dict(parse_url(url))
        except ValueError as error:
            raise InvalidRequest("url", _without_password(url), f"not a Redis URL: {error}") from error
        connection_class = options.pop("connection_class", Connection)
        for name in options:
            if not _kept(name):
                raise InvalidRequest(
                    "url", name, "not an option of the URL: timeouts, retries and names are set here"
                )
        return cls(connection_class, options)

    def __str__(self) -> str:
        if "path" in self.options:
            return f"{self.options['path']} (unix socket)"
        return f"{self.options.get('host', 'localhost')}:{self.options.get('port', 6379)}"

    def commands(
        self, name: str, *, connections: int = 16, timeout_s: float = 5.0, retries: int = 0
    ) -> Redis:
        """For commands that answer at once. `retries` after a lost connection: only for repeatable calls."""
        return Redis.from_pool(self._pool(name, connections, timeout_s, retries))

    def blocking(self, name: str, *, block_s: float) -> Redis:
        """For reads that block up to `block_s` (XREADGROUP … BLOCK): one connection, never re-sent."""
        return Redis.from_pool(self._pool(name, 1, block_s + BLOCK_MARGIN_S, 0))

    def subscriber(self, name: str) -> AbstractConnection:
        """One connection for subscriptions, not yet connected, never reconnecting by itself.

        Its user sets timeouts around each call. With one of its own, redis-py would send inside
        `asyncio.wait_for`, which in Python 3.11 may swallow the cancellation of the task.
        """
        return self.connection_class(**self._settings(name, CONNECT_S, 0) | {"socket_timeout": None})

    def _pool(self, name: str, connections: int, timeout_s: float, retries: int) -> ConnectionPool:
        return BlockingConnectionPool(
            max_connections=connections,
            timeout=POOL_WAIT_S,
            connection_class=_cancellable(self.connection_class),
            **self._settings(name, timeout_s, retries),
        )

    def _settings(self, name: str, timeout_s: float, retries: int) -> dict[str, Any]:
        backoff = ExponentialWithJitterBackoff(base=0.05, cap=1.0) if retries else NoBackoff()
        return dict(self.options) | {
            "socket_timeout": timeout_s,
            "socket_connect_timeout": min(timeout_s, CONNECT_S),
            "retry": Retry(backoff, retries),
            "client_name": name,
            "protocol": 2,
            "decode_responses": False,
        }


def _cancellable(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """The connection class, sending without `asyncio.wait_for`: in Python 3.11 that may swallow the task's
    cancellation, which then waits for ever."""

    base: Any = kind

    class Cancellable(base):  # type: ignore[misc]
        socket_timeout: float | None

        async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
            if not self.is_connected:
                await self.connect_check_health(check_health=False)
            limit_s, self.socket_timeout = self.socket_timeout, None
            try:
                async with asyncio.timeout(limit_s):
                    await super().send_packed_command(command, check_health)
            except builtins.TimeoutError:
                await self.disconnect(nowait=True)
                raise TimeoutError("Timeout writing to socket") from None
            finally:
                self.socket_timeout = limit_s

    cancellable: type[AbstractConnection] = Cancellable
    return cancellable


@contextlib.contextmanager
def unavailable(endpoint: Endpoint) -> Iterator[None]:
    """Errors of redis-py and of the network, raised inside, come out as Unavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        detail = str(error) or type(error).__name__
        raise Unavailable(f"Redis at {endpoint}: {detail}") from error


def _kept(option: str) -> bool:
    return option in ADDRESS or option.startswith("ssl_")


def _without_password(url: str) -> str:
    return re.sub(r"//[^@/]*@", "//***@", url)
