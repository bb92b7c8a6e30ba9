"""Server addresses from user input: a URL, or a client of redis-py whose address is taken over."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import RedisError

from millstream.errors import InvalidRequest
from millstream.wire.connection.nodes import Access, ServerNode

Target = str | Redis | RedisCluster  # of redis.asyncio

SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
)
CREDENTIALS = frozenset({"username", "password", "credential_provider"})
# Options taken over from a URL or a client; TLS options (ssl_*) are too. All others are decided here.
ADDRESS = CREDENTIALS | {"host", "port", "path", "db"}
OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
_SEVERAL = re.compile(r"(?P<tls>rediss?)\+(?P<kind>sentinel|cluster)://")
_PORTS = {"sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """One server: `access.options` has its address. Several: `nodes` are Sentinels if there is a `service`,
    else nodes of a Cluster.
    """

    access: Access
    nodes: tuple[ServerNode, ...] = ()
    service: str = ""
    sentinels: Access | None = None


def place_of(target: object) -> ServerAddress:
    """Parse a URL or a client. Raises InvalidRequest, without any password in its text."""
    if not isinstance(target, str):
        return _of_client(target)
    if not target.startswith(SCHEMES):
        problem = f"not a Redis URL: begin it with one of {', '.join(SCHEMES)}"
        raise InvalidRequest("url", without_password(target), problem)
    try:
        several = _SEVERAL.match(target)
        place = _of_several(target, several) if several else ServerAddress(_access(target))
    except ValueError as error:
        # an unescaped / or : makes a part of the password the port, which the error quotes
        problem = re.sub(
            r"integer value as .*", "a number; write : / ? # @ in a password as %3A …", str(error)
        )
        raise InvalidRequest("url", without_password(target), f"not a Redis URL: {problem:.300}") from None
    _check_tls(target, place.access)
    return place


def without_password(url: str) -> str:
    """The URL without everything before the last @ (a password may contain any character), and without
    password parameters after it.
    """
    url = re.sub(r"^([\w+]*://)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", url)


# --- URLs


def _of_several(url: str, several: re.Match[str]) -> ServerAddress:
    """redis-py reads everything but the list of hosts, from a URL with the first of them."""
    kind = several["kind"]
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    nodes = [_node(host, _PORTS[kind]) for host in hosts.split(",")]
    service, _, db = parts.path.strip("/").partition("/")
    if kind == "cluster" and (service or db):
        raise ValueError("a Cluster has no databases; end the URL behind the hosts")
    if kind == "sentinel" and not service:
        raise ValueError("name the service that the Sentinels watch: …/mymaster or …/mymaster/0")
    if db and not db.isdecimal():
        raise ValueError("the database behind the service's name must be a number")
    words = {name: values[0] for name, values in parse_qs(parts.query).items()}
    own = {
        OF_SENTINELS[name]: words.pop(name) for name in OF_SENTINELS if kind == "sentinel" and name in words
    }
    one = _access(f"{several['tls']}://{credentials}{at}host/{db}?{urlencode(words)}")
    access = Access(one.connection_class, {k: v for k, v in one.options.items() if k != "host"})
    if kind == "cluster":
        return ServerAddress(access, tuple(nodes))
    sentinels = Access(one.connection_class, own | _taken(one.options, frozenset()))
    return ServerAddress(access, tuple(nodes), unquote(service), sentinels)


def _node(text: str, default_port: int) -> ServerNode:
    host, port = urlsplit(f"//{text}").hostname, urlsplit(f"//{text}").port
    if not host:
        raise ValueError(f"a host is missing in the list: give host:port,host:port (got {text!r})")
    return ServerNode(unquote(host), port or default_port)


def _access(url: str) -> Access:
    """The options that redis-py reads from the URL of one server."""
    options: dict[str, Any] = dict(parse_url(url))
    connection_class = options.pop("connection_class", Connection)
    for name in options:
        if name not in ADDRESS and not name.startswith("ssl_"):
            raise InvalidRequest(
                "url", name, "not an option of the URL: timeouts, retries and names are set here"
            )
    return Access(connection_class, options)


def _check_tls(url: str, access: Access) -> None:
    """Load the certificates, so that a mistake is an error here, not a server that hangs up."""
    options = {name: value for name, value in access.options.items() if name.startswith("ssl_")}
    if not options:
        return
    if not issubclass(access.connection_class, SSLConnection):
        name = next(iter(options))
        raise InvalidRequest("url", without_password(url), f"{name} needs TLS: begin it with rediss")
    try:
        SSLConnection(**options).ssl_context.get()
    except TypeError as error:
        raise InvalidRequest("url", without_password(url), f"no such TLS option: {error!s:.300}") from error
    except (OSError, ValueError, RedisError, ssl.SSLError) as error:
        files = ", ".join(f"{name}={value}" for name, value in options.items() if "password" not in name)
        problem = f"the TLS options cannot be used: {without_password(str(error)):.300}"
        raise InvalidRequest("url", without_password(files), problem) from None  # a cause may show a password


# --- clients of redis-py


def _of_client(client: object) -> ServerAddress:
    if isinstance(client, RedisCluster):
        return _of_cluster(client)
    pool: object = getattr(client, "connection_pool", None)
    if isinstance(pool, SentinelConnectionPool):
        return _of_sentinel_pool(pool)
    if not isinstance(pool, ConnectionPool):
        problem = "give a Redis URL, a redis.asyncio.Redis or a redis.asyncio.RedisCluster"
        raise InvalidRequest("url", client, problem)
    return ServerAddress(Access(pool.connection_class, _taken(pool.connection_kwargs, ADDRESS)))


def _of_cluster(client: RedisCluster) -> ServerAddress:
    if client.nodes_manager.address_remap is not None:
        problem = "a RedisCluster with address_remap cannot be taken over; give a URL that needs none"
        raise InvalidRequest("url", client, problem)
    seeds = client.nodes_manager.startup_nodes.values()
    options = client.get_connection_kwargs()
    access = Access(options.get("connection_class") or Connection, _taken(options, CREDENTIALS))
    return ServerAddress(access, tuple(ServerNode(seed.host, int(seed.port)) for seed in seeds))


def _of_sentinel_pool(pool: SentinelConnectionPool) -> ServerAddress:
    manager = pool.sentinel_manager
    if not pool.is_master:
        problem = "a client of Sentinel's replicas cannot write; give the one of master_for"
        raise InvalidRequest("url", pool, problem)
    asked: Sequence[dict[str, Any]] = [one.connection_pool.connection_kwargs for one in manager.sentinels]
    nodes = tuple(ServerNode(one["host"], int(one["port"])) for one in asked)
    kind = manager.sentinels[0].connection_pool.connection_class
    sentinels = Access(kind, _taken(asked[0], CREDENTIALS))
    # without redis-py's Sentinel part, which belongs to its Sentinel pool
    plain = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
    access = Access(plain, _taken(pool.connection_kwargs, CREDENTIALS | {"db"}))
    return ServerAddress(access, nodes, str(pool.service_name), sentinels)


def _taken(options: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if value is not None and (name in names or name.startswith("ssl_"))
    }
