"""Opens a command's server: the given one, or an embedded one with a worker while the command runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from millstream.cli.display.terminal import say
from millstream.cli.embedded.demo_model import demo_model
from millstream.cli.embedded.embedded_server import EmbeddedServer, home, running_url
from millstream.cli.embedded.interrupt_hold import held_back
from millstream.cli.embedded.local_worker import LocalWorker, check_extras
from millstream.client.session.run_while import run_while
from millstream.errors import InvalidRequest, Unavailable
from millstream.model_path import problem_of
from millstream.wire.connection import Endpoint, unavailable
from millstream.wire.keys import ShardKeys
from millstream.wire.state.heartbeat import SERVING, read_all_workers, read_workers
from millstream.wire.state.queue_info import QueueInfo, read_queue

T = TypeVar("T")
LOOK_S = 0.2  # between two checks of processes and heartbeats


@dataclass(frozen=True, slots=True)
class Stack:
    """`checks` raise if a process of this command has ended; there are none for a given server. `steps`
    returns the loading steps that have begun since the last call.
    """

    url: str
    queue: str | None = None  # served by this command's worker; None: it has none
    checks: tuple[Callable[[], None], ...] = field(default=())
    steps: Callable[[], Sequence[str]] = field(default=tuple)

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work; raises WorkerEnded or ServerFailed if a process that it needs has ended."""
        return await run_while(self._watch(), work)

    async def has_worker(self, queue: str) -> bool:
        """True if workers serve the whole queue now."""
        return not await self.unserved(queue)

    async def unserved(self, queue: str) -> list[int]:
        """The shards that no worker serves now."""
        async with self._reading(queue) as (redis, shards):
            return [n for n, keys in enumerate(shards) if not await read_workers(redis, keys)]

    async def loading(self, queue: str) -> int:
        """The workers of the queue that load their model, and will serve it."""
        async with self._reading(queue) as (redis, shards):
            return len((await read_all_workers(redis, *shards))[1])

    @contextlib.asynccontextmanager
    async def _reading(self, queue: str) -> AsyncIterator[tuple[Any, list[ShardKeys]]]:
        endpoint = Endpoint.of(self.url)
        redis = endpoint.commands("millstream-cli", connections=1)
        try:
            with unavailable(endpoint):
                yield redis, (await read_queue(redis, queue) or QueueInfo()).shard_keys(queue)
        finally:
            await redis.aclose()

    async def worker_ready(self) -> list[str]:
        """Waits inside `guard` until this command's own worker, if it has one, has loaded its model. Returns
        what is slower with it than it could be, with the reasons."""
        while self.queue is not None:
            with contextlib.suppress(Unavailable):  # `guard` has the better message if the server has ended
                async with self._reading(self.queue) as (redis, shards):
                    workers = await read_workers(redis, *shards)
                if serving := [worker for worker in workers if worker.state == SERVING]:
                    return [worker.fallbacks for worker in serving if worker.fallbacks]
            await asyncio.sleep(LOOK_S)
        return []

    async def _watch(self) -> None:
        while True:
            for check in self.checks:
                check()
            await asyncio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """The model of this command's own worker."""

    name: str  # in messages, and in a run's file
    path: str  # the worker's `--model`


def choose_model(redis_url: str | None, model: str | None) -> LocalModel | None:
    """Returns None with a given server. Without a name, fetches the demo model.

    Raises InvalidRequest, MissingExtra, ModelUnavailable.
    """
    if redis_url:
        if model:
            problem = "applies to an embedded worker; with --redis-url the workers have their own model"
            raise InvalidRequest("--model", model, problem)
        return None
    check_extras()
    if model is None:
        file = demo_model(say)
        return LocalModel(file.name, str(file))
    if wrong := problem_of(model):
        raise InvalidRequest("--model", model, wrong)
    path = Path(model).expanduser()
    known = str(path.resolve()) if path.exists() else model
    return LocalModel(known, known)


@contextlib.contextmanager
def open_stack(redis_url: str | None, model: LocalModel | None, *, queue: str = "default") -> Iterator[Stack]:
    """Yields the server at `redis_url`; without one an embedded server, with a worker if there is a model.

    Raises MissingExtra, ServerInUse, ServerFailed. Without a model, the embedded server of another running
    command is used.
    """
    folder = home()
    if redis_url:
        yield Stack(redis_url)
        return
    if model is None and (running := running_url(folder)):
        say(f"no --redis-url: using the embedded server ({folder}) that another command runs")
        yield Stack(running)
        return
    with EmbeddedServer(folder) as server, contextlib.ExitStack() as exits:
        if model is None:
            say(f"no --redis-url: using an embedded server ({folder}) while this command runs")
            yield Stack(server.url, checks=(server.check,))
            return
        say(
            f"no --redis-url: using an embedded server ({folder}) and a worker with {model.name} "
            "while this command runs"
        )
        worker = LocalWorker(server.url, queue, model.path, folder / "worker.log")
        with held_back():
            exits.enter_context(worker)
            server.note_worker(worker.pid)
        yield Stack(server.url, queue, (worker.check, server.check), worker.log.steps)
