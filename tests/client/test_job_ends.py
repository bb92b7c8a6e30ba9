"""Waiting for many jobs where messages never cease, and none tells what matters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.wire.stream_world import record

from millstream.client.queue.looks import Looks
from millstream.client.streaming.mailbox import Sink
from millstream.client.tracking import job_ends
from millstream.errors import NotReady
from millstream.wire.keys import QueueKeys, ShardKeys
from millstream.wire.messages.messages import Result, State
from millstream.wire.messages.replies import JobRecord
from millstream.wire.state.queue_info import QueueInfo

BUSY = replace(record(State.RUNNING), job_id="0-busy")
QUIET = replace(BUSY, job_id="0-quiet")


class BusyJobs:
    """Two jobs: of one, each look makes a message arrive; of the other none does, and it ends at the third
    look at it."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.session = SimpleNamespace(dispatcher=lambda pubsub: self, outlast=self.outlast, looks=Looks())
        self.looks = 0

    async def info(self) -> QueueInfo:
        return QueueInfo()

    async def full_ids(self, names: Iterable[str]) -> dict[str, str | None]:
        return {name: name for name in names}

    async def keys_of(self, job_ids: Iterable[str]) -> dict[str, ShardKeys]:
        return dict.fromkeys(job_ids, QueueKeys("q").shard(0))

    @contextlib.contextmanager
    def subscription(self, channels: Iterable[str], sink: Sink) -> Iterator[None]:
        for channel in channels:
            self.sinks[channel] = sink
            sink.subscribed(channel)
        yield

    def drop(self, channel: str, sink: Sink) -> None: ...

    async def not_ready(self, job_id: str, state: State) -> NotReady:
        return NotReady(job_id, state)

    async def outlast(self, read: Callable[[], Awaitable[Any]], *_: float) -> Any:
        await asyncio.sleep(0)
        return await read()

    async def read(self, job_ids: Sequence[str]) -> list[JobRecord]:
        for channel, sink in self.sinks.items():
            if channel.endswith("busy"):
                sink.deliver(channel, b"1-1 e completed")
        self.looks += "0-quiet" in job_ids
        quiet = replace(QUIET, state=State.COMPLETED) if self.looks >= 3 else QUIET
        return [quiet if job_id == "0-quiet" else BUSY for job_id in job_ids]

    async def conclude(self, record: JobRecord) -> Result:
        return Result(state=record.state)


async def test_neither_the_end_of_the_time_nor_a_lost_message_is_missed() -> None:
    jobs: Any = BusyJobs()
    polls_s = (0.01, 0.01)
    async with asyncio.timeout(10):
        ended = [pair async for pair in job_ends.as_completed(jobs, ["0-busy", "0-quiet"], 0.3, polls_s)]
    assert ended[0] == ("0-quiet", Result())
    assert ended[1][0] == "0-busy"
    assert isinstance(ended[1][1], NotReady)
