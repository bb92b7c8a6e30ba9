"""Floods against a real worker: what waits stays in the server, and memory stays within its bounds.

The bounds are several times what is used, and far below what the same flood takes where nothing holds it
back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.wire.flood import flooded_worker, watch
from support.workers.counting_worker import assert_nothing_left, counted, model_name, serving, until
from support.workers.work import LANE, SHARD, answer, raw_submission

from millstream import AsyncClient, JobFields, QueueFull, Result, Unavailable
from millstream.wire import calls
from millstream.wire.keys import GROUP
from millstream.wire.messages import codec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # a flood takes its time where other tests run beside it
]


@pytest.fixture
def fresh_valkey() -> Iterator[Server]:
    """A server that no other test used: what it holds in memory is this test's own."""
    with Server("valkey") as server:
        yield server


async def queued(direct: redis.asyncio.Redis) -> int:
    """In the lane, and parked beside it."""
    return int(await direct.xlen(LANE)) + int(await direct.zcard(SHARD.parked("batch")))


async def test_a_hundred_thousand_queued_jobs_stay_in_the_server(valkey: Server, tokenizer: Path) -> None:
    payload = codec.pack({"prompt": "w1", "sampling": {"max_tokens": 2}})
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        flooded_worker(client, valkey, model_name(tokenizer, rows=32, step_s=0.02)) as (worker, memory),
    ):
        worker.send_signal(signal.SIGSTOP)
        for start in range(0, 100_000, 1000):
            submits = [raw_submission(f"0-tiny{start + number}", payload) for number in range(1000)]
            await calls.run_many(direct, submits)
        assert await queued(direct) == 100_000
        worker.send_signal(signal.SIGCONT)

        async def a_thousand_done() -> bool:
            return await queued(direct) < 99_000

        await watch(memory, a_thousand_done)
        assert (await direct.xpending(LANE, GROUP))["pending"] <= 32 + 16 + 64  # rows, look-ahead, one read
        assert (await client.wait("0-tiny0", timeout_s=30)).choices[0].text == counted(2, 2)
        assert memory.growth_mib("front") < 60
        assert memory.growth_mib("engine") < 30


async def test_huge_payloads_are_taken_by_their_bytes(valkey: Server, tokenizer: Path, gate: Path) -> None:
    """48 payloads of 8 MiB (of which little is the prompt), and room for all of them by number: they are not
    read at once, and not kept. The worker gets done with none of them."""
    payload = codec.pack({"prompt": "w1", "sampling": {"max_tokens": 2}, "unknown": "x" * (8 * 2**20)})
    model = model_name(tokenizer, rows=32, gate=gate)
    async with (
        AsyncClient(valkey.url) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
        flooded_worker(client, valkey, model, lookahead=32) as (worker, memory),
    ):
        (gate / "0").touch()
        worker.send_signal(signal.SIGSTOP)  # so that it finds them all
        for number in range(48):
            await calls.run(direct, raw_submission(f"0-huge{number}", payload))
        worker.send_signal(signal.SIGCONT)

        async def all_begun() -> bool:
            return await _states(direct, 48) == ["running"] * 48

        await watch(memory, all_begun)
        assert memory.growth_mib("front") < 150
        assert memory.growth_mib("engine") < 30
        (gate / "0").unlink()
        outcomes = await client.wait_many([f"0-huge{number}" for number in range(48)], timeout_s=60)
        assert all(isinstance(outcome, Result) for outcome in outcomes.values())


async def _states(direct: redis.asyncio.Redis, jobs: int) -> list[str]:
    async with direct.pipeline(transaction=False) as pipeline:
        for number in range(jobs):
            pipeline.hget(SHARD.job(f"0-huge{number}"), "state")
        return [state.decode() for state in await pipeline.execute()]


async def test_unread_results_make_room_when_they_expire(fresh_valkey: Server, tokenizer: Path) -> None:
    async with (
        AsyncClient(fresh_valkey.url) as client,
        redis.asyncio.Redis.from_url(fresh_valkey.url) as direct,
        serving(fresh_valkey, model_name(tokenizer), result_ttl_s=2.0),
    ):
        await client.wait((await client.submit("w1", max_tokens=2)).id, timeout_s=30)
        before = (await direct.info("memory"))["used_memory"]
        await direct.config_set("maxmemory", before + 4 * 2**20)
        metadata = {str(n): "m" * 500 for n in range(64)}
        large: JobFields = {"prompt": "w1", "max_tokens": 2, "metadata": metadata}

        async def full() -> bool:
            outcomes = await client.submit_many([large] * 16)
            return any(isinstance(outcome, QueueFull | Unavailable) for outcome in outcomes)

        async def room_again() -> bool:
            [outcome] = await client.submit_many([large])
            return not isinstance(outcome, Exception)

        await until(full, 60)
        await until(room_again, 60)
        assert await answer(client, "w5", 2, wait_s=30) == counted(6, 2)

        async def gone() -> bool:
            return not [key async for key in direct.scan_iter(f"{SHARD.job('')}*")]

        async def small() -> bool:  # the buffers of idle connections shrink after seconds
            used: int = (await direct.info("memory"))["used_memory"]
            return used < before + 2 * 2**20

        await until(gone, 60)
        await until(small, 30)
        await assert_nothing_left(direct)
