"""What a flood does to the processes around it: their memory, the server's, and jobs by the thousand."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from millstream import AsyncClient, JobFields
from support.servers.servers import Server
from support.workers.counting_worker import until, worker_process

MIB = 2**20


@dataclass(slots=True)
class Memory:
    """Resident bytes of a worker's two processes: what they had before, and the most they had since."""

    front: psutil.Process
    engine: psutil.Process
    before: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        for name in ("front", "engine"):
            size = getattr(self, name).memory_info().rss
            self.before.setdefault(name, size)
            self.most[name] = max(size, self.most.get(name, 0))

    def growth_mib(self, name: str) -> float:
        self.look()
        return (self.most[name] - self.before[name]) / MIB


@contextlib.asynccontextmanager
async def flooded_worker(
    client: AsyncClient, server: Server, model: str, **changes: Any
) -> AsyncIterator[tuple[subprocess.Popen[bytes], Memory]]:
    """A worker process that has done its first job, and its memory from then on."""
    with worker_process(server, model, **changes) as process:
        first = await client.submit("w1", max_tokens=2)
        await client.wait(first.id, timeout_s=60)
        front = psutil.Process(process.pid)
        memory = Memory(front, front.children()[0])
        memory.look()
        yield process, memory


async def watch(memory: Memory, condition: Any, wait_s: float = 90.0) -> None:
    """Until the condition holds; memory is looked at all the time."""

    async def looked() -> bool:
        memory.look()
        return bool(await condition())

    await until(looked, wait_s)


async def submit_all(client: AsyncClient, jobs: Iterable[JobFields], **options: Any) -> list[str]:
    """Every one is accepted; answers their ids."""
    outcomes = await client.submit_many(jobs, **options)
    refused = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert not refused, refused[0]
    return [outcome.id for outcome in outcomes if not isinstance(outcome, Exception)]
