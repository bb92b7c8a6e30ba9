"""Where a server is, in every way that it can be said, and what its connections are set to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import Sentinel
from support.servers.sentinel import Sentinels
from support.servers.servers import Server

from millstream import AsyncClient, ClientOptions
from millstream.errors import InvalidRequest, Unavailable
from millstream.wire.connection import Endpoint, unavailable
from millstream.wire.connection.nodes import ServerNode


async def test_a_url_and_a_client_of_the_same_server(server: Server) -> None:
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True, protocol=3) as given:
        for target in (server.url, given):
            commands = Endpoint.of(target).commands("my-service")
            assert await commands.set("key", "\xff")
            assert await commands.get("key") == "\xff".encode()  # never decoded
            assert await commands.client_getname() == "my-service"
            assert commands.get_retry() is None or commands.get_retry().get_retries() == 0
            await commands.aclose()


async def test_a_unix_socket(tmp_path: Path) -> None:
    with Server("valkey", unixsocket=str(tmp_path / "s.sock")):
        endpoint = Endpoint.of(f"unix://{tmp_path}/s.sock?db=3")
        commands = endpoint.commands("test")
        assert await commands.ping()
        assert str(endpoint) == f"{tmp_path}/s.sock (unix socket)"
        assert endpoint.options["db"] == 3
        await commands.aclose()


def test_tls_and_credentials_are_taken_over() -> None:
    endpoint = Endpoint.of("rediss://user:p%40ss@example:7000/2?ssl_cert_reqs=none")
    assert endpoint.connection_class is SSLConnection
    assert endpoint.options == {
        "username": "user", "password": "p@ss", "host": "example", "port": 7000, "db": 2,
        "ssl_cert_reqs": "none",
    }  # fmt: skip
    assert str(endpoint) == "example:7000"


@pytest.mark.parametrize("rest", ["?ssl_cert_reqs=x", "?db=", "/0?ssl_ca_certs=", "?ssl_x=1&ssl_y="])
def test_a_url_pasted_twice_hides_its_password_and_length(rest: str) -> None:
    twice = f"rediss://:secret@host{rest}rediss://:secret@host{rest}{'9' * 5000}"
    with pytest.raises(InvalidRequest) as caught:
        Endpoint.of(twice)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_what_a_client_of_sentinels_knows_is_taken_over() -> None:
    manager = Sentinel(
        [("one", 1), ("two", 2)], sentinel_kwargs={"password": "of sentinels", "socket_timeout": 1}
    )
    client = manager.master_for(
        "main", username="me", password="of servers", db=3, ssl=True, socket_timeout=9
    )
    endpoint = Endpoint.of(client)
    assert endpoint.connection_class is SSLConnection
    assert endpoint.options == {"username": "me", "password": "of servers", "db": 3}
    assert endpoint.sentinels is not None
    assert endpoint.sentinels.nodes == [ServerNode("one", 1), ServerNode("two", 2)]
    assert endpoint.sentinels.service == "main"
    assert endpoint.sentinels.access.options == {"password": "of sentinels"}


async def test_what_a_client_of_a_cluster_knows_is_taken_over() -> None:
    client = redis.asyncio.RedisCluster(host="10.0.0.1", port=7000, password="secret", ssl=True)
    endpoint = Endpoint.of(client)
    assert endpoint.connection_class is SSLConnection
    assert endpoint.topology is not None
    assert endpoint.topology.seeds == (ServerNode("10.0.0.1", 7000),)
    assert endpoint.options["password"] == "secret"
    assert not {"host", "port", "socket_timeout", "retry"} & set(endpoint.options)
    elsewhere = redis.asyncio.RedisCluster(host="h", port=1, address_remap=lambda address: address)
    with pytest.raises(InvalidRequest, match="address_remap"):
        Endpoint.of(elsewhere)


def test_a_url_of_sentinels() -> None:
    url = "redis+sentinel://me:p%40ss@one,two:2,[::1]:3/my%20main/4?sentinel_username=s&sentinel_password=t"
    endpoint = Endpoint.of(url)
    assert endpoint.options == {"username": "me", "password": "p@ss", "db": 4}
    assert endpoint.sentinels is not None
    assert endpoint.sentinels.nodes == [ServerNode("one", 26379), ServerNode("two", 2), ServerNode("::1", 3)]
    assert endpoint.sentinels.access.options == {"username": "s", "password": "t"}
    assert str(endpoint) == "'my main' of the Sentinels one:26379, two:2, [::1]:3"


def test_a_url_of_a_cluster() -> None:
    endpoint = Endpoint.of("rediss+cluster://:secret@one:7000,two?ssl_cert_reqs=none")
    assert endpoint.connection_class is SSLConnection
    assert endpoint.options == {"password": "secret", "ssl_cert_reqs": "none"}
    assert endpoint.topology is not None
    assert endpoint.topology.seeds == (ServerNode("one", 7000), ServerNode("two", 6379))
    assert str(endpoint) == "Cluster one:7000, two:6379"


@pytest.mark.parametrize(
    ("target", "remedy"),
    [
        ("localhost", "^url: "),
        ("", "^url: "),
        ("redis://localhost:99999", "^url: "),
        ("http://me:secret@localhost", "^url: "),
        ("redis://me:secret@localhost?decode_responses=true", "decode_responses"),
        (redis.Redis(), r"give a Redis URL, a redis\.asyncio\.Redis or"),
        (None, r"give a Redis URL, a redis\.asyncio\.Redis or"),
        (Sentinel([("localhost", 1)]).slave_for("main"), "give the one of master_for"),  # cannot write
        ("redis+sentinel://me:secret@one,two", "name the service"),
        ("redis+sentinel://me:secret@one/main/zero", "must be a number"),
        ("redis+sentinel://me:secret@one,,two/main", "a host is missing"),
        ("redis+sentinel://me:secret@/main", "a host is missing"),
        ("redis+cluster://me:secret@one/3", "no databases"),
        ("redis+cluster://me:secret@one:port", "url: "),
        ("redis+cluster://me:secret@one?sentinel_password=secret", "sentinel_password"),
        ("redis+sentinel://me:secret@one/main?timeout=3", "timeout"),
        ("rediss://h?ssl_ca_certs=/nowhere.pem", r"ssl_ca_certs=/nowhere\.pem"),
        ("rediss://h?ssl_certfile=/nowhere.pem&ssl_keyfile=/k.pem", "cannot be used"),
        ("rediss://h?ssl_cert_reqs=perhaps", "perhaps"),
        ("rediss://h?ssl_certificate=/here.pem", "no such TLS option"),
        ("redis://h?ssl_cert_reqs=none", "begin it with rediss"),
        ("redis+sentinel://h/main?ssl_cert_reqs=none", "begin it with rediss"),
        ("rediss+cluster://h?ssl_ca_certs=/nowhere.pem", "cannot be used"),
        ("redis+magic://me:secret@one", r"begin it with one of redis://, .*redis\+cluster://"),
    ],
)
def test_slips_in_addresses(target: Any, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy) as caught:
        Endpoint.of(target)
    assert "secret" not in str(caught.value)


@contextlib.contextmanager
def replica(server: Server) -> Iterator[None]:
    """The server is one for a while."""
    with contextlib.closing(redis.Redis(port=server.port)) as admin:
        admin.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            admin.replicaof("NO", "ONE")


async def test_a_server_that_becomes_a_replica_is_left(server: Server) -> None:
    """Whatever the address is: a name may lead to the new master."""
    commands = Endpoint.of(server.url).commands("test")
    assert await commands.set("key", "1")
    with replica(server):
        for write in (commands.set("key", "2"), commands.eval("redis.call('SET', KEYS[1], 3)", 1, "key")):
            with pytest.raises(redis.ConnectionError, match="is a replica now"):
                await write
    assert await commands.get("key") == b"1"
    await commands.aclose()


async def test_sentinels_that_are_not_there_or_know_nothing(server: Server) -> None:
    """The first that knows the service is believed; a plain server is none."""
    endpoint = Endpoint.of(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{server.port}/main")
    commands = endpoint.commands("test")
    with pytest.raises(Unavailable) as caught, unavailable(endpoint):
        await commands.ping()
    assert "no Sentinel names a master: 127.0.0.1:1: " in str(caught.value)
    assert "unknown command" in str(caught.value)
    await commands.aclose()


class StaleSentinel:
    """Names a server that is no master."""

    def __init__(self, server: Server) -> None:
        self.node = ServerNode("127.0.0.1", server.port)

    async def master(self) -> ServerNode:
        return self.node


async def test_a_master_that_is_none_is_not_believed(server: Server) -> None:
    """Reads would be answered with the past."""
    endpoint = replace(Endpoint.of(server.url), sentinels=StaleSentinel(server))
    commands = endpoint.commands("test")
    with replica(server), pytest.raises(redis.ConnectionError, match="is no master"):
        await commands.get("key")
    assert await commands.get("key") is None
    await commands.aclose()


async def test_sentinels_with_a_password(server: Server) -> None:
    with Sentinels(server.kind, replicas=0, password="s3cret") as sentinels:
        commands = Endpoint.of(sentinels.url).commands("test")
        assert await commands.ping()
        await commands.aclose()
        without = Endpoint.of(sentinels.url.partition("?")[0])
        commands = without.commands("test")
        with pytest.raises(Unavailable, match=r"(?i)auth"), unavailable(without):
            await commands.ping()
        await commands.aclose()


async def test_a_blocking_read_is_not_cut_off(server: Server) -> None:
    blocking = Endpoint.of(server.url).blocking("test", block_s=0.05)
    assert await blocking.xread({"nothing": "$"}, block=50) == []
    settings = blocking.connection_pool.connection_kwargs
    assert settings["socket_timeout"] > 0.05
    assert settings["retry"].get_retries() == 0
    await blocking.aclose()


async def test_a_command_in_flight_does_not_reconnect_a_closed_client(valkey: Server) -> None:
    commands = Endpoint.of(valkey.url).commands("closed", timeout_s=5, retries=3)
    await commands.ping()
    with valkey.admin() as admin:
        admin.client_pause(200)
        under_way = asyncio.create_task(commands.incr("count"))
        await asyncio.sleep(0.05)
        await commands.aclose()
        with pytest.raises(redis.ConnectionError, match="this client is closed"):
            await under_way
        assert not [found for found in admin.client_list() if found["name"] == "closed"]


async def test_a_client_whose_close_is_cancelled_keeps_no_connection(valkey: Server) -> None:
    client = AsyncClient(valkey.url, options=ClientOptions(name="closed"))
    job = await client.submit("One line.")
    with valkey.admin() as admin:
        following = asyncio.create_task(anext(client.stream(job.id)))
        await asyncio.sleep(0.1)
        admin.client_pause(300, all=True)
        reading = asyncio.create_task(client.status(job.id))
        closing = asyncio.create_task(client.aclose())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.wait([closing, reading, following])
        assert closing.cancelled()
        assert isinstance(reading.exception(), Unavailable)
        assert not [found for found in admin.client_list() if found["name"].startswith("closed")]


async def test_errors_of_the_server_come_out_as_unavailable(server: Server) -> None:
    endpoint = Endpoint.of(server.url)
    commands = endpoint.commands("test")
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{server.port}: .*WRONGTYPE|unknown command"):
        with unavailable(endpoint):
            await commands.execute_command("NOSUCHCOMMAND")
    with pytest.raises(ZeroDivisionError), unavailable(endpoint):
        raise ZeroDivisionError
    await commands.aclose()
