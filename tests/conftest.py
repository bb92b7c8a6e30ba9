"""Fixtures that every test may use: real servers (`server`, once per kind and session, empty for each test)
and a client connected to one (`redis_client`); what workers with the counting model are given (`tokenizer`,
`gate`)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.asyncio
import structlog
from hypothesis import settings
from support.servers.servers import KINDS, Server, binary, lasting_server, require, running
from support.wire.desk import Desk

if TYPE_CHECKING:
    from support.workers.work import Work

# parallel test processes on few cores: no spinning thread teams
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

_LONG_NAME = 200

# A machine that others use takes as long as it takes. (In CI, examples are the same in each run.)
settings.register_profile("tests", settings(), deadline=None)
settings.load_profile("tests")

# jsonschema imports it where it finds it, which takes two seconds. No installation of the worker's has it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# Started in a script's background, or by nohup, this process ignores them, and so would every command that
# the tests start and send them to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Next to nothing becomes garbage until all tests are there: to look for it is a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The fast tier runs on Valkey; what runs on Redis as well does so in the slow one. What may take longest
    begins first, lest it end alone."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "redis" in parameters:
            item.add_marker(pytest.mark.slow)
    items.sort(key=_rank, reverse=True)


def _rank(item: pytest.Item) -> tuple[float, bool]:
    limit, slow = item.get_closest_marker("timeout"), item.get_closest_marker("slow")
    return limit.args[0] if limit else 0.0, slow is not None


def pytest_make_parametrize_id(config: pytest.Config, val: object) -> str | None:
    """Names a long text by its beginning: pytest would write megabytes into a test's name, in each process,
    and send it between them with each report."""
    del config
    if isinstance(val, bytes | str) and len(val) > _LONG_NAME:
        return ascii(val[:_LONG_NAME])
    return None


def pytest_report_header() -> str:
    found = {kind: binary(kind) for kind in KINDS}
    return "servers: " + ", ".join(f"{kind} {path or 'missing'}" for kind, path in found.items())


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A test that configures the logs, as commands do, decides nothing for those after it in its process."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """Started when first asked for; ended with the session."""
    started: dict[str, Server] = {}
    yield started
    for server in started.values():
        server.remove()


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """A running, empty server: each test that takes it runs once on Valkey and once on Redis."""
    return running(request.param, servers)


@pytest.fixture
def valkey(servers: dict[str, Server]) -> Server:
    """A running, empty embedded Valkey, for tests of which one kind is enough."""
    return running("valkey", servers)


@pytest.fixture(params=KINDS)
def lasting(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of the test's own, of each kind, that keeps what it acknowledged."""
    require(request.param)
    with lasting_server(request.param) as server:
        yield server


@pytest.fixture
async def redis_client(server: Server) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.fixture
async def desk(redis_client: redis.asyncio.Redis) -> Desk:
    """A shard to work on, on each kind of server."""
    return await Desk(redis_client).open()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer of the counting model: one token for each word `w<number>`."""
    from support.workers.counting_worker import (
        write_tokenizer,  # torch, which must not come before the settings above
    )

    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder: while it has a file `N`, no row of a counting model draws its output token `N` (from 0)."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


@pytest.fixture
def work(server: Server, tokenizer: Path, tmp_path: Path) -> Work:
    """Workers with the counting model, on the test's server."""
    from support.workers.work import Work  # torch, as above

    return Work(server, tokenizer, tmp_path)
