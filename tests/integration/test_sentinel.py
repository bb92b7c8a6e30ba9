"""A master that its Sentinels replace: clients and workers go on with the new one by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from support.servers.sentinel import Sentinels
from support.servers.servers import KINDS, require
from support.workers.counting_worker import assert_nothing_left, until
from support.workers.followers import assert_whole, followed
from support.workers.work import Work, answer

from millstream import AsyncClient, ClientOptions, Durability
from millstream.wire.connection import Endpoint

pytestmark = pytest.mark.alone
JOBS = 8
TOKENS = 12


@pytest.fixture(scope="module", params=KINDS)
def sentinels(request: pytest.FixtureRequest) -> Iterator[Sentinels]:
    require(request.param)
    with Sentinels(request.param) as sentinels:
        yield sentinels


@asynccontextmanager
async def inspecting(sentinels: Sentinels) -> AsyncIterator[redis.asyncio.Redis]:
    inspector = Endpoint.of(sentinels.url).commands("inspector", retries=10)
    yield inspector
    await inspector.aclose()


@pytest.fixture
async def client(sentinels: Sentinels) -> AsyncIterator[AsyncClient]:
    async with inspecting(sentinels) as inspector:
        await inspector.flushall()
    async with AsyncClient(sentinels.url) as client:
        yield client


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


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "demoted"])
async def test_streams_and_waits_survive_a_replaced_master(
    sentinels: Sentinels, client: AsyncClient, tokenizer: Path, tmp_path: Path, killed: bool
) -> None:
    """Also one that lives on: nobody goes on with it for longer than it takes to notice. A second kill meets
    the blocking read, the leases and the subscriptions of an idle worker and an idle client."""
    replace = sentinels.kill_master if killed else sentinels.failover
    work = Work(sentinels.url, tokenizer, tmp_path)
    work.hold(4)
    async with work(rows=JOBS, lease_s=30, block_s=1.0) as worker:
        followers = await followed(client, JOBS, TOKENS, begun=True)
        await replicated(sentinels)
        old = await asyncio.to_thread(replace)
        work.go(4)
        await assert_whole(client, followers, TOKENS)
        if killed:
            await asyncio.to_thread(old.start)
            await replicated(sentinels)
            old = await asyncio.to_thread(replace)
        assert await answer(client, "w50", 2, stream=True) == "w51 w52"
        assert worker.metric("jobs_reclaimed_total") == 0
        if killed:
            await asyncio.to_thread(old.start)
    await replicated(sentinels)
    if killed:  # what a demoted master still took is done again, or waits for that
        async with inspecting(sentinels) as inspector:
            await assert_nothing_left(inspector)


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
