"""Where a server is, in every way that it can be said, and what its connections are set to."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import Sentinel
from support.servers import Server

from millstream.errors import InvalidRequest, Unavailable
from millstream.wire.connection import Endpoint, unavailable


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
    server = Server("valkey", unixsocket=str(tmp_path / "s.sock")).start()
    try:
        endpoint = Endpoint.of(f"unix://{tmp_path}/s.sock?db=3")
        commands = endpoint.commands("test")
        assert await commands.ping()
        assert str(endpoint) == f"{tmp_path}/s.sock (unix socket)"
        assert endpoint.options["db"] == 3
        await commands.aclose()
    finally:
        server.remove()


def test_tls_and_credentials_are_taken_over() -> None:
    endpoint = Endpoint.of("rediss://user:p%40ss@example:7000/2?ssl_cert_reqs=none")
    assert endpoint.connection_class is SSLConnection
    assert endpoint.options == {
        "username": "user",
        "password": "p@ss",
        "host": "example",
        "port": 7000,
        "db": 2,
        "ssl_cert_reqs": "none",
    }
    assert str(endpoint) == "example:7000"


@pytest.mark.parametrize("target", ["localhost", "http://localhost", "", "redis://localhost:99999"])
def test_what_is_no_url(target: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^url: "):
        Endpoint.of(target)


def test_a_wrong_url_does_not_show_its_password() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Endpoint.of("http://user:secret@localhost")
    assert "secret" not in str(caught.value)


def test_options_that_would_work_against_us() -> None:
    with pytest.raises(InvalidRequest, match="decode_responses"):
        Endpoint.of("redis://localhost?decode_responses=true")


def test_clients_of_other_kinds() -> None:
    sentinel = Sentinel([("localhost", 1)]).master_for("main")
    for target in (redis.Redis(), sentinel, None, 5):
        with pytest.raises(InvalidRequest, match=r"redis\.asyncio\.Redis of one server"):
            Endpoint.of(target)  # type: ignore[arg-type]


async def test_a_blocking_read_is_not_cut_off(server: Server) -> None:
    blocking = Endpoint.of(server.url).blocking("test", block_s=0.05)
    assert await blocking.xread({"nothing": "$"}, block=50) == []
    settings = blocking.connection_pool.connection_kwargs
    assert settings["socket_timeout"] > 0.05
    assert settings["retry"].get_retries() == 0
    await blocking.aclose()


async def test_errors_of_the_server_come_out_as_unavailable(server: Server) -> None:
    endpoint = Endpoint.of(server.url)
    commands = endpoint.commands("test")
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{server.port}: .*WRONGTYPE|unknown command"):
        with unavailable(endpoint):
            await commands.execute_command("NOSUCHCOMMAND")
    with pytest.raises(ZeroDivisionError), unavailable(endpoint):
        raise ZeroDivisionError
    await commands.aclose()
