"""TLS to a real server, with certificates of our own on both sides. Redis only: our Valkey has none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import environment
from support.servers.certificates import Authority, Certificate, has_openssl, tls_options
from support.servers.cluster import ClusterServer
from support.servers.sentinel import SentinelServer
from support.servers.servers import Server, binary
from support.workers.counting_worker import counted, model_name, serving, settings, write_tokenizer

from millstream import AsyncClient, ClientOptions, Unavailable
from millstream_worker import command
from millstream_worker.service.service import Service

pytestmark = pytest.mark.skipif(
    os.environ.get("CI") != "true" and not (binary("redis") and has_openssl()),
    reason="needs redis-server and openssl on the PATH",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def client_files(authority: Authority) -> Certificate:
    return authority.sign("client")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """Signed by somebody whom the server does not know."""
    return Authority(tmp_path_factory.mktemp("strangers")).sign("client")


@pytest.fixture(scope="module")
def strict_url(authority: Authority) -> Iterator[str]:
    """Of a server that wants a certificate of its clients."""
    with Server("redis", **tls_options(authority), tls_auth_clients="yes") as server:
        yield f"rediss://127.0.0.1:{server.options['tls-port']}/0"


def trusting(url: str, authority: Authority, files: Certificate | None = None) -> str:
    url = f"{url}?ssl_ca_certs={authority.file}"
    return f"{url}&ssl_certfile={files.certificate}&ssl_keyfile={files.key}" if files else url


async def test_a_whole_worker_with_its_own_certificate(
    strict_url: str, authority: Authority, client_files: Certificate, tmp_path: Path
) -> None:
    await assert_jobs_go_through(trusting(strict_url, authority, client_files), tmp_path)


@pytest.mark.slow
async def test_sentinels_and_their_master_over_tls(
    authority: Authority, client_files: Certificate, tmp_path: Path
) -> None:
    """Each with the certificates of the URL; both want one of the client."""
    master = Server("redis", **tls_options(authority)).start()
    sentinel = SentinelServer("redis", **tls_options(authority), tls_replication="yes")
    try:
        sentinel.start(int(master.options["tls-port"]), [], [sentinel], "")
        url = trusting(
            f"rediss+sentinel://127.0.0.1:{sentinel.options['tls-port']}/main", authority, client_files
        )
        await assert_jobs_go_through(url, tmp_path)
    finally:
        sentinel.remove()
        master.remove()


@pytest.mark.slow
async def test_a_cluster_over_tls(authority: Authority, client_files: Certificate, tmp_path: Path) -> None:
    node = ClusterServer("redis", **tls_options(authority), tls_cluster="yes")
    try:
        node.start()
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        url = trusting(f"rediss+cluster://127.0.0.1:{node.options['tls-port']}", authority, client_files)
        await assert_jobs_go_through(url, tmp_path)
    finally:
        node.remove()


async def test_a_server_without_tls_is_named_as_such(valkey: Server) -> None:
    """After one attempt: a handshake that nobody answers takes as long as it may."""
    options = ClientOptions(timeout_s=1.0)
    async with AsyncClient(valkey.url.replace("redis://", "rediss://"), options=options) as client:
        async with asyncio.timeout(2.0):
            with pytest.raises(Unavailable, match="does not speak TLS; use redis://"):
                await client.status("0-a")


async def test_a_server_with_tls_alone_is_named_as_such(strict_url: str) -> None:
    async with AsyncClient(strict_url.replace("rediss://", "redis://")) as client:
        with pytest.raises(Unavailable, match="speaks TLS; use rediss://"):
            await client.status("0-a")


async def assert_jobs_go_through(url: str, folder: Path) -> None:
    """By a client and a whole worker."""
    async with AsyncClient(url) as client:
        async with serving(url, model_name(write_tokenizer(folder / "tokenizer"))):
            job = await client.submit("w1", max_tokens=5, stream=True)
            assert "".join([event.text async for event in client.stream(job.id)]) == counted(2, 5)


@pytest.mark.parametrize("trusted", ["nobody", "another", "another name"])
async def test_a_certificate_that_is_refused_has_a_remedy(
    strict_url: str, authority: Authority, stranger: Certificate, trusted: str
) -> None:
    other = stranger.certificate.with_name("authority.pem")
    url, remedy = {
        "nobody": (strict_url, "give ssl_ca_certs"),
        "another": (f"{strict_url}?ssl_ca_certs={other}", f"another authority than that of {other}"),
        "another name": (
            trusting(strict_url.replace("127.0.0.1", "127.1"), authority),
            "by a name that stands in its certificate",
        ),
    }[trusted]
    async with AsyncClient(url) as client:
        with pytest.raises(Unavailable, match="certificate verify failed") as refused:
            await client.submit("over the wire")
    assert remedy in str(refused.value)


async def test_a_client_without_a_certificate_is_refused(strict_url: str, authority: Authority) -> None:
    async with AsyncClient(trusting(strict_url, authority)) as client:
        with pytest.raises(Unavailable, match=r"ssl_certfile"):
            await client.submit("over the wire")


async def test_a_worker_without_a_certificate_says_so(strict_url: str, authority: Authority) -> None:
    service = Service(settings(trusting(strict_url, authority), "model"))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(service.run())
        async with asyncio.timeout(30):
            while "ssl_certfile" not in (service.health.problem or ""):
                assert not running.done()
                await asyncio.sleep(0.01)
        service.drain()


async def test_a_client_with_a_strange_certificate_is_refused(
    strict_url: str, authority: Authority, stranger: Certificate
) -> None:
    async with AsyncClient(trusting(strict_url, authority, stranger)) as client:
        with pytest.raises(Unavailable, match=r"does not trust who signed .*client\.pem"):
            await client.submit("over the wire")


def test_a_worker_says_which_file_is_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(environment()):
            patch.delenv(name)
        url = "rediss://:secret@127.0.0.1:1/0?ssl_ca_certs=/nowhere.pem"
        assert command.run(["--model=none", f"--redis-url={url}"]) == 2
    said = capfd.readouterr().err
    assert "redis_url: the TLS options cannot be used" in said
    assert "secret" not in said
