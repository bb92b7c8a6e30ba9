"""Workers whose engine counts (`fake_engine`): in this process as a `Service`, or as a process of their own.
Token i is the word `w<i>`, so the answer to "w7" is "w8 w9 w10 …".
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from millstream import AsyncClient, State, Submitted
from millstream.wire.keys import GROUP, LANES, QueueKeys, ShardKeys
from millstream_worker.service.components import Components
from millstream_worker.service.service import CannotServe, Service
from millstream_worker.settings import Settings
from support.servers.servers import Server
from support.workers.fake_engine import COMMAND

CHAT_TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{{ last | default('') }}"

T = TypeVar("T")
# Settings of a worker with a real engine and a tiny model, which computes alike on every machine.
REAL: dict[str, Any] = {
    "engine_command": "", "dtype": "float32", "device": "cpu", "threads": 1, "kv_memory": "4MiB",
    "compile_model": "off",
}  # fmt: skip


def write_tokenizer(
    folder: Path,
    *,
    chat: bool = False,
    ending: str = "",
    template: str = CHAT_TEMPLATE,
    spaces: pre_tokenizers.PreTokenizer | None = None,
) -> Path:
    """`ending`: of each word; `template`: for a `chat`; `spaces`: what parts words."""
    words = {f"w{i}{ending}": i for i in range(1000)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=f"w0{ending}"))
    tokenizer.pre_tokenizer = spaces or pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    if chat:
        fast.chat_template = template
    fast.save_pretrained(str(folder))
    return folder


def counted(first: int, count: int) -> str:
    """The text of `count` tokens from `first` on, as an answer has it."""
    return " ".join(f"w{token}" for token in range(first, first + count))


def model_name(tokenizer: Path, **options: object) -> str:
    given = {"tokenizer": tokenizer, **options}
    return "counting:" + ",".join(f"{name}={value}" for name, value in given.items())


def settings(server: Server | str, model: str, **changes: Any) -> Settings:
    """Settings that make everything happen soon. `server`: one, or its URL."""
    quick = {
        "redis_url": server if isinstance(server, str) else server.url,
        "model": model,
        "engine_command": COMMAND,
        "lease_s": 1.0,
        "renew_s": 0.25,
        "grace_s": 20.0,
        "block_s": 0.05,
        "flush_ms": 5,
        "log_flush_s": 0.05,
        "retry_backoff_s": 0.1,
    }
    return Settings(**(quick | changes))


def flags_of(chosen: Settings) -> list[str]:
    """What was set, as the command line of `millstream_worker` takes it."""
    given = {
        name.replace("_", "-"): getattr(chosen, name) for name in sorted(chosen.model_fields_set - {"burst"})
    }
    return [
        f"--{'' if value else 'no-'}{name}" if isinstance(value, bool) else f"--{name}={value}"
        for name, value in given.items()
    ]


class Worker:
    """A service that runs in this process' loop."""

    def __init__(self, service: Service, registry: CollectorRegistry, queue: str) -> None:
        self.service = service
        self.registry = registry
        self.queue = queue

    @property
    def components(self) -> Components:
        """Once the queue is open."""
        assert self.service.session is not None, "the queue is not open yet"
        return self.service.session.components

    def metric(self, name: str, **labels: str) -> float:
        labels = {"queue": self.queue, **labels}
        return self.registry.get_sample_value(f"millstream_{name}", labels) or 0.0


@contextlib.asynccontextmanager
async def serving(server: Server, model: str, **changes: Any) -> AsyncIterator[Worker]:
    """A worker for the block; drained at its end, at once if the block asked for that already."""
    registry = CollectorRegistry()
    chosen = settings(server, model, **changes)
    service = Service(chosen, registry)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(service.run())
        yield Worker(service, registry, chosen.queue)
        if not running.done():
            service.drain()


@contextlib.contextmanager
def worker_thread(
    server: Server, model: str, *, replace_model: bool = False, **changes: Any
) -> Iterator[Service]:
    """A service with a loop and a thread of its own, for commands under test; drained at the end. Its model
    may be replaced before.
    """
    service = Service(settings(server, model, **changes), CollectorRegistry(), replace_model=replace_model)
    loop = asyncio.new_event_loop()

    def run() -> None:
        with contextlib.suppress(CannotServe):
            loop.run_until_complete(service.run())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(service.drain)
        thread.join(60)
        assert not thread.is_alive()
        loop.close()


@contextlib.contextmanager
def worker_process(
    server: Server | str, model: str, *, environment: dict[str, str] | None = None, **changes: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m millstream_worker` with flags; killed at the end if it still runs."""
    command = [sys.executable, "-m", "millstream_worker", *flags_of(settings(server, model, **changes))]
    process = subprocess.Popen(command, start_new_session=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=15)


async def until(condition: Callable[[], bool | Awaitable[bool]], wait_s: float = 30.0) -> None:
    """Wait for something that another process brings about."""
    async with asyncio.timeout(wait_s):
        while True:
            held = condition()
            if held if isinstance(held, bool) else await held:
                return
            await asyncio.sleep(0.005)


async def until_read(
    read: Callable[[], Awaitable[T]], holds: Callable[[T], object], wait_s: float = 30.0
) -> None:
    """Read again and again, until what is read holds."""

    async def held() -> bool:
        return bool(holds(await read()))

    await until(held, wait_s)


async def until_running(client: AsyncClient, *jobs: Submitted | str) -> None:
    """Until a worker has taken them; that it has read or begun them is not said."""
    ids = [job if isinstance(job, str) else job.id for job in jobs]

    async def all_run() -> bool:
        return all([(await client.status(job_id)).state is State.RUNNING for job_id in ids])

    await until(all_run)


async def streamed_text(client: AsyncClient, job_id: str) -> str:
    """What a reader gets that comes now, to the end of the stream."""
    return "".join([event.text async for event in client.stream(job_id)])


async def assert_nothing_left(redis: Any, queue: str = "default", shards: int = 1) -> None:
    """After all jobs have ended: counters at zero, nothing pending, and no job's key without its end."""
    keys = QueueKeys(queue)
    left = [line for shard in range(shards) for line in await leftovers(redis, keys.shard(shard))]
    lasting = {key.decode() for key in [key async for key in redis.scan_iter()] if await redis.ttl(key) == -1}
    stay = {keys.meta, *(key for shard in range(shards) for key in keys.shard(shard).kept_keys)}
    assert not left + sorted(lasting - stay)


async def leftovers(redis: Any, shard: ShardKeys) -> list[str]:
    """What a shard still holds of jobs, each as a line; none once all have ended."""
    sizes = {
        "bytes held": int(await redis.get(shard.held_bytes) or 0),
        "retries waiting": await redis.zcard(shard.delayed),
        "deadlines": await redis.zcard(shard.deadlines),
    }
    for lane in LANES:
        sizes[f"parked beside {lane}"] = await redis.zcard(shard.parked(lane))
        sizes[f"tenants of {lane}"] = await redis.hlen(shard.tenants(lane))
    for lane in shard.lanes:
        sizes[f"entries in {lane}"] = await redis.xlen(lane)
        sizes[f"pending in {lane}"] = await _pending(redis, lane)
    return [f"{shard.tag}: {size} {what}" for what, size in sizes.items() if size]


async def _pending(redis: Any, lane: str) -> int:
    try:
        return int((await redis.xpending(lane, GROUP))["pending"])
    except ResponseError:  # no group: nobody has read since the last one was destroyed
        return 0
