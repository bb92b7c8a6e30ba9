"""`millstream queue --metrics-port`: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest
from support.commands import assert_refused, invoke, process
from support.http import fetch
from support.scrapes import queue_exporter, scrape, until_shown
from support.servers.servers import Server, free_port


def test_the_exporter_ends_with_ctrl_c(valkey: Server) -> None:
    port = free_port()
    with process("queue", "--metrics-port", f"127.0.0.1:{port}", MILLSTREAM_REDIS_URL=valkey.url) as running:
        assert running.stderr is not None
        told = running.stderr.readline()
        assert f"the metrics of queue default are at http://127.0.0.1:{port}/metrics" in told
        assert scrape(port)[1]["queue_up{default}"] == 1
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    assert fetch(port) == (0, "")


@pytest.mark.parametrize(
    "address", ["", "x", "-1", "70000", "1.2.3.4.5:80", "host name:80", ":80", "[::1]", "80:"]
)
def test_an_address_that_cannot_be_used_is_told(address: str, valkey: Server) -> None:
    assert_refused("--metrics-port", "queue", f"--metrics-port={address}", "--redis-url", valkey.url)


@pytest.mark.parametrize("other", ["--watch", "--wide", "--json"])
def test_the_exporter_takes_no_option_of_the_page(other: str, valkey: Server) -> None:
    done = invoke("queue", "--metrics-port=0", other, "--redis-url", valkey.url)
    assert (done.exit_code, "serves the figures in place of a page" in done.output) == (2, True)


def test_a_port_in_use_is_told(valkey: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_refused("Address already in use", "queue", "--metrics-port", port, "--redis-url", valkey.url)


def test_a_user_without_rights_ends_the_exporter(valkey: Server) -> None:
    """A server that is away may come back; a password that is wrong stays so."""
    url = valkey.url.replace("//", "//nobody:wrong@")
    assert_refused("check the user and the password", "queue", "--metrics-port=0", "--redis-url", url, code=3)


async def test_the_exporter_waits_for_its_server() -> None:
    with Server("valkey") as server:
        server.kill()
        with queue_exporter(server.url, "--queue", "docs") as port:
            _, seen = await asyncio.to_thread(scrape, port)
            assert seen == {"queue_up{docs}": 0}
            server.start()
            await until_shown(port, {"queue_up{docs}": 1, "workers{docs}": 0})
