"""One queue on servers of its own, a crew of workers, a load, and the ledger of what was submitted.

A fault gets the arena and acts on it. It knows no fault, and judges nothing: `checks` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis.asyncio
from redis.exceptions import RedisError
from support.servers.cluster import Cluster
from support.servers.lifetime import Startable
from support.servers.proxy import Proxy
from support.servers.servers import Server
from support.workers.counting_worker import model_name
from support.workers.word_answers import write_words
from support.workers.word_engine import COMMAND
from support.workers.word_images import write_processor

from chaos.crew import WORKER, Crew, Member
from chaos.door.gateways import Gateways
from chaos.ledger import Ledger
from chaos.load import Load
from chaos.mutants import Mutant
from chaos.watcher import Watcher
from millstream import AsyncClient, ClientOptions
from millstream.wire.connection import Endpoint
from millstream.wire.keys import ShardKeys
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.state.queue_info import PubSub, QueueInfo, open_queue

LEASE_S = 1.0
RENEW_S = 0.25
IMAGE_MEMORY = 50_000  # bytes of an engine: of some thirty small images


LASTING = {"appendonly": "yes", "appendfsync": "always"}  # of servers that write all down before they answer
lasting = partial(Server, **LASTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """`settings` and `engine` change those of the workers and of the counting engine."""

    place: Callable[[str], Startable] = lasting  # a server or several, by their kind
    route: Callable[[Any, random.Random], Proxy] | None = None  # between clients and server
    shards: int = 1
    pubsub: PubSub = PubSub.PLAIN
    crew: int = 2
    customers: int = 32
    gateways: int = 0  # with batches, uploads and answers that go through them
    rate: float = 60.0  # orders a second, about
    images: float = 0.0  # the share of orders that have some
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of every client


class Arena:
    """Enter it: server, workers and load run. What faults do is theirs to undo."""

    def __init__(self, setup: Setup, kind: str, seed: str, mutant: Mutant | None = None) -> None:
        self.setup = setup
        self.seed = seed
        self.mutant = mutant
        self.random = random.Random(f"{seed}/faults")
        self.queue = "chaos"
        self.ledger = Ledger(setup.shards)
        self.folder = Path(tempfile.mkdtemp(prefix="millstream-chaos-"))
        self.server: Any = setup.place(kind)
        self.route: Any = None
        self._nodes: list[redis.asyncio.Redis] = []
        self._exits = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._build()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._exits.aclose()

    async def _build(self) -> None:
        setup, exits = self.setup, self._exits
        exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
        exits.callback(self.server.remove)
        self.server.start()
        self.url = self.server.url
        if setup.route is not None:
            self.route = await exits.enter_async_context(setup.route(self.server, random.Random(self.seed)))
            self.url = self.route.url
        if self.mutant is not None:
            exits.enter_context(self.mutant.in_clients())
        self.admin = self._connect(self.server.url)
        if isinstance(self.server, Cluster):
            self._nodes = [self._connect(server.url) for server in self.server.servers]
        keys = (await self._open()).keys(self.queue)
        self.shards: list[ShardKeys] = [keys.shard(shard) for shard in range(setup.shards)]
        self.crew = self._recruit()
        exits.callback(self.crew.end)
        self.crew.ensure(setup.crew)
        self.watcher = await exits.enter_async_context(Watcher(self))
        self.load = await exits.enter_async_context(Load(self))
        self.gateways: Gateways | None = None
        if setup.gateways:
            self.gateways = await exits.enter_async_context(Gateways(self, setup.gateways))

    def _connect(self, url: str) -> redis.asyncio.Redis:
        client: redis.asyncio.Redis = Endpoint.of(url).commands("chaos-admin", timeout_s=10, retries=8)
        self._exits.push_async_callback(client.aclose)
        return client

    async def _open(self, wait_s: float = 15.0) -> QueueInfo:
        """Several servers may need a moment to agree on who of them is what."""
        setup = self.setup
        async with asyncio.timeout(wait_s):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    return await open_queue(self.admin, self.queue, shards=setup.shards, pubsub=setup.pubsub)
                await asyncio.sleep(0.1)

    def _recruit(self) -> Crew:
        setup = self.setup
        engine = {"step_s": 0.02, "rows": 16, "tally": self.folder} | dict(setup.engine)
        tokenizer = write_words(self.folder / "tokenizer")
        if setup.images:
            write_processor(tokenizer)
            engine["image_memory"] = IMAGE_MEMORY
        self.model = model_name(tokenizer, **engine)
        # A fault kills engines under innocent jobs: their deaths alone make none of them a suspect.
        patient = {"max_died": 50, "max_attempts": 500, "engine_restarts": 100, "speculate": "always"}
        leases = {"lease_s": LEASE_S, "renew_s": RENEW_S}
        command = {"engine_command": (self.mutant and self.mutant.engine_command) or COMMAND}
        place = {"model": self.model, "queue": self.queue, "redis_url": self.url}
        chosen = place | patient | leases | command
        launcher = (
            WORKER if self.mutant is None or self.mutant.gateways else ("chaos.mutants", self.mutant.name)
        )
        return Crew(self.folder, chosen | dict(setup.settings), launcher)

    @property
    def files(self) -> Path:
        """Where gateways keep their files."""
        return self.folder / "files"

    async def nodes(self) -> list[redis.asyncio.Redis]:
        """A connection to each server that holds keys."""
        return self._nodes or [self.admin]

    async def on_duty(self) -> list[Member]:
        """Workers whose engine is ready, by their heartbeat."""
        named = {beat.name for beat in await read_workers(self.admin, self.shards[0]) if beat.model}
        return [m for m in self.crew.alive if not m.frozen and any(m.owns(name) for name in named)]

    async def somebody(self, draw: float, *, beside: int = 0, wait_s: float = 30.0) -> Member:
        """One of those on duty, chosen by `draw` (0 to 1), as soon as `beside` others are there to go on."""
        async with asyncio.timeout(wait_s):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    members = await self.on_duty()
                    if len(members) > beside:
                        return members[int(draw * len(members))]
                await asyncio.sleep(0.05)

    def client(self, **options: Any) -> AsyncClient:
        """As a customer has one."""
        given: dict[str, Any] = {"timeout_s": 2.0, "shards": self.setup.shards, "pubsub": self.setup.pubsub}
        return AsyncClient(
            self.url, queue=self.queue, options=ClientOptions(**given | dict(self.setup.options) | options)
        )
