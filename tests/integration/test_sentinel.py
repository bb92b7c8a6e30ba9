"""A master that its Sentinels replace: clients and workers go on with the new one by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
from support.servers.sentinel import Sentinels
from support.servers.servers import KINDS, require
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    streamed_text,
    until,
)

from millstream import AsyncClient, ClientOptions, Durability, Result, RewindEvent, TokenEvent, Transcript
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys

pytestmark = pytest.mark.alone
JOBS = 8
TOKENS = 12
SHARD = QueueKeys("default").shard(0)


@pytest.fixture(scope="module", params=KINDS)
def sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    require(request.param)
    with Sentinels(request.param) as sentinels:
        yield sentinels


@pytest.fixture
async def client(sentinels: Sentinels) -> AsyncIterator[AsyncClient]:
    inspector = Endpoint.of(sentinels.url).commands("inspector", retries=10)
    await inspector.flushall()
    await inspector.aclose()
    async with AsyncClient(sentinels.url) as client:
        yield client


class Reader:
    """A job's stream. What a demoted master still took is gone with it: the reader is told to rewind."""

    def __init__(self, client: AsyncClient, job_id: str) -> None:
        self.transcript = Transcript()
        self.seqs: list[int] = []
        self.task = asyncio.ensure_future(self._read(client, job_id))

    @property
    def text(self) -> str:
        return self.transcript.text()

    async def _read(self, client: AsyncClient, job_id: str) -> None:
        async for event in client.stream(job_id):
            self.transcript.add(event)
            if isinstance(event, TokenEvent):
                self.seqs.append(event.seq)
            elif isinstance(event, RewindEvent):
                del self.seqs[event.seq :]


async def started(client: AsyncClient) -> dict[str, Reader]:
    """Jobs whose first tokens have been read, and that both replicas know."""
    jobs = await client.submit_many(
        {"prompt": f"w{n + 1}", "max_tokens": TOKENS, "stream": True} for n in range(JOBS)
    )
    readers = {job.id: Reader(client, job.id) for job in jobs}
    await until(lambda: all(reader.text for reader in readers.values()))
    return readers


async def replicated(sentinels: Sentinels) -> None:
    """Writes that only the old master has are lost by a failover: there shall be none."""

    async def caught_up() -> bool:
        offsets = await asyncio.to_thread(positions, sentinels)
        return len(offsets) == len(sentinels.servers) and len(set(offsets)) == 1

    await until(caught_up)


def positions(sentinels: Sentinels) -> list[int]:
    """How far each server has come in the replication stream."""
    found = []
    for server in sentinels.servers:
        with redis.Redis(port=server.port) as one:
            info = one.info("replication")
        name = "master_repl_offset" if info["role"] == "master" else "slave_repl_offset"
        found.append(int(info[name]))
    return found


async def assert_whole(client: AsyncClient, readers: dict[str, Reader]) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(reader.task for reader in readers.values()))
    results = await client.wait_many(readers, timeout_s=60)
    for number, (job_id, reader) in enumerate(readers.items()):
        result = results[job_id]
        assert isinstance(result, Result)
        assert result.choices[0].text == reader.text == counted(number + 2, TOKENS)
        assert reader.seqs == list(range(1, len(reader.seqs) + 1))
        assert result.attempts == 1


async def test_a_killed_master(
    sentinels: Sentinels, client: AsyncClient, tokenizer: Path, gate: Path
) -> None:
    (gate / "4").touch()
    async with serving(sentinels.url, model_name(tokenizer, gate=gate, rows=JOBS), lease_s=30) as worker:
        readers = await started(client)
        await replicated(sentinels)
        old = await asyncio.to_thread(sentinels.kill_master)
        (gate / "4").unlink()
        await assert_whole(client, readers)
        job = await client.submit("w50", max_tokens=2)
        assert (await client.wait(job.id, timeout_s=30)).choices[0].text == "w51 w52"
        assert worker.metric("jobs_reclaimed_total") == 0
        await asyncio.to_thread(old.start)
    await nothing_left(sentinels)


async def test_a_master_that_is_demoted_and_lives_on(
    sentinels: Sentinels, client: AsyncClient, tokenizer: Path, gate: Path
) -> None:
    """Nobody goes on with the old one for longer than it takes to notice."""
    (gate / "4").touch()
    async with serving(sentinels.url, model_name(tokenizer, gate=gate, rows=JOBS), lease_s=30):
        readers = await started(client)
        await replicated(sentinels)
        await asyncio.to_thread(sentinels.failover)
        (gate / "4").unlink()
        await assert_whole(client, readers)
    await replicated(sentinels)


async def test_a_worker_that_waits_for_work_meanwhile(
    sentinels: Sentinels, client: AsyncClient, tokenizer: Path
) -> None:
    """The blocking read, the leases and the subscriptions of an idle worker and an idle client."""
    async with serving(sentinels.url, model_name(tokenizer), block_s=1.0, lease_s=30) as worker:
        first = await client.submit("w1", max_tokens=1)
        await client.wait(first.id, timeout_s=30)
        await replicated(sentinels)
        old = await asyncio.to_thread(sentinels.kill_master)
        job = await client.submit("w5", max_tokens=3, stream=True)
        assert await streamed_text(client, job.id) == "w6 w7 w8"
        await until(lambda: worker.metric("requests_total", state="completed") == 2)
        await asyncio.to_thread(old.start)
    await nothing_left(sentinels)


async def test_what_replicas_have_is_not_lost(sentinels: Sentinels) -> None:
    """Submits that waited for a replica, with the master killed behind the last of them."""
    options = ClientOptions(durability=Durability.REPLICAS, durability_replicas=2)
    async with AsyncClient(sentinels.url, queue="durable", options=options) as client:
        jobs = await client.submit_many({"prompt": f"w{n}"} for n in range(50))
        assert all(job.durable for job in jobs)
        old = await asyncio.to_thread(sentinels.kill_master)
        for job in jobs:
            assert (await client.status(job.id)).state == "queued"
        await asyncio.to_thread(old.start)


async def nothing_left(sentinels: Sentinels) -> None:
    inspector = Endpoint.of(sentinels.url).commands("inspector", retries=3)
    await assert_nothing_left(inspector)
    await inspector.aclose()
