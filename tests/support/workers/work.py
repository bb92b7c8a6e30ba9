"""What a test of whole workers needs: workers with the counting model on the test's server, whose rows wait
where they are told to and whose engine can be killed; answers, streams and records in one line.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

from millstream import AsyncClient, Event, Result
from millstream.wire import calls
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job
from millstream.wire.messages.script_replies import JobRecord, SubmitReply
from millstream_worker.service.service import Service
from millstream_worker.settings import Settings
from support.servers.servers import Server
from support.workers.counting_worker import Worker, model_name, serving, settings, until, worker_process
from support.workers.fake_engine import Counting

SHARD = QueueKeys("default").shard(0)
LANE = SHARD.lane("batch")


class Work:
    """Call it for a worker of this process, as long as a block. Options that the model has (`Counting`) go to
    it, all others are settings."""

    def __init__(self, server: Server | str, tokenizer: Path, folder: Path, **always: Any) -> None:
        """`server`: one, or a URL; `always`: options of each worker."""
        self.server: Any = server
        self._gate, self._pids = folder / "gate", folder / "pids"
        for made in (self._gate, self._pids):
            made.mkdir(exist_ok=True)
        folders = {"tokenizer": tokenizer, "gate": self._gate, "pids": self._pids}
        self._always: dict[str, Any] = folders | always

    def __call__(self, **options: Any) -> AbstractAsyncContextManager[Worker]:
        model, changes = self._sorted(options)
        return serving(self.server, model, **changes)

    def process(self, **options: Any) -> AbstractContextManager[subprocess.Popen[bytes]]:
        model, changes = self._sorted(options)
        return worker_process(self.server, model, **changes)

    def settings(self, **options: Any) -> Settings:
        model, changes = self._sorted(options)
        return settings(self.server, model, **changes)

    def service(self, **options: Any) -> Service:
        """One that does not run yet."""
        return Service(self.settings(**options))

    async def burst(self, **options: Any) -> None:
        """Until the queue is empty."""
        await self.service(burst=True, **options).run()

    def hold(self, *places: int) -> None:
        """From now on no row draws these of its output tokens, counted from 0."""
        for place in places:
            (self._gate / str(place)).touch()

    def go(self, place: int) -> None:
        (self._gate / str(place)).unlink(missing_ok=True)

    def engines(self) -> list[int]:
        """The processes of those that have loaded, and were not killed here."""
        return [int(path.name) for path in self._pids.iterdir()]

    def kill_engine(self, number: signal.Signals = signal.SIGKILL) -> None:
        [pid] = self.engines()
        os.kill(pid, number)
        (self._pids / str(pid)).unlink()

    def _sorted(self, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        given = self._always | options
        model = {name: given.pop(name) for name in Counting.__dataclass_fields__ if name in given}
        return model_name(**model), given


def raw_submission(job_id: str, payload: bytes, **changes: Any) -> calls.ScriptCall[SubmitReply]:
    """As any client may send it: the payload is anything."""
    given: dict[str, Any] = {"lane": "batch", "digest": "d", "version": 1, "deadline_ms": None}
    given |= {"stream": True, "max_entries": 10**9, "max_bytes": 10**12}
    return calls.submit(SHARD, job_id=job_id, payload=payload, **given | changes)


async def outcome(client: AsyncClient, prompt: str, max_tokens: int, **fields: Any) -> Result:
    """Of a job that is submitted now."""
    job = await client.submit(prompt, max_tokens=max_tokens, **fields)
    return await client.wait(job.id, timeout_s=60)


async def answer(client: AsyncClient, prompt: str, max_tokens: int, **fields: Any) -> str:
    return (await outcome(client, prompt, max_tokens, **fields)).text


async def read_to(events: AsyncIterator[Event], text: str) -> str:
    """The stream's next events: exactly this text."""
    seen = ""
    while seen != text:
        seen += (await anext(events)).text
        assert text.startswith(seen), f"{seen!r} is not the beginning of {text!r}"
    return seen


async def rest_of(events: AsyncIterator[Event]) -> str:
    return "".join([event.text async for event in events])


async def record_of(redis_client: Any, job_id: str) -> JobRecord:
    record = await read_job(redis_client, SHARD, job_id)
    assert record is not None, f"{job_id} is not there"
    return record


async def until_refused(worker: Worker, *, times: int) -> None:
    """Until the server has refused writes of the worker's jobs so many times; each puts the next one off."""
    put_off: set[float] = set()

    def refused() -> bool:
        put_off.update(job.log.not_before for job in worker.components.table)
        return len(put_off - {0.0}) >= times

    await until(refused)
