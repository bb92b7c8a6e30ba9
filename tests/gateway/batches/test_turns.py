"""Batches of many tenants take turns: nobody's number of batches, and no queue without workers, delays
others."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from support.batches import CHAT, chat, finished, made, upload
from support.gateway import Gateway
from support.servers.servers import Server
from support.workers.counting_worker import until_read
from support.workers.hand_worker import HandWorker, hand_worker

from millstream.gateway.auth.api_keys import ApiKeyStore
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.open_batches import OpenBatch, OpenBatches
from millstream.gateway.batches.runner.batch_runner import STALLED_S
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import OPEN_BATCHES, OPEN_TENANTS, TenantKeys

MOST_S = 2.0  # until a batch is begun, whatever others have
UNSERVED = chat(1, "w1", 2) | {"body": chat(1, "w1", 2)["body"] | {"model": "other"}}


async def begun_after_s(client: openai.AsyncOpenAI, worker: HandWorker) -> float:
    """Seconds until a batch of this client for the served queue is begun; it is carried to its end."""
    start_s = time.monotonic()
    batch = await made(client, [chat(1, "w1", 2)])
    job = await worker.take()
    taken_s = time.monotonic() - start_s
    await job.end(last="done")
    assert (await finished(client, batch.id)).status == "completed"
    return taken_s


@pytest.mark.slow
async def test_a_thousand_batches_of_a_tenant_delay_no_other(
    door: Gateway, access: GatewayRedis, catalogue: BatchCatalogue, worker: HandWorker
) -> None:
    busy, other = [(await ApiKeyStore(access.client).add(tenant))[1] for tenant in ("busy", "other")]
    async with door.client(busy) as client:
        file_id = await upload(client, [UNSERVED])
        fields = {"endpoint": CHAT, "input_file_id": file_id, "completion_window": "24h"}
        for number in range(1100):
            await catalogue.create(
                "busy", f"batch_{number}", fields, window_s=86_400, charge="", lasts_s=86_400
            )
    async with door.client(other) as client:
        assert await begun_after_s(client, worker) < MOST_S
    assert await access.client.zcard(TenantKeys("busy").open_batches) == 1100


@pytest.mark.slow
async def test_batches_of_an_unserved_queue_give_their_place(
    door: Gateway, access: GatewayRedis, worker: HandWorker, valkey: Server
) -> None:
    """And are carried out once it has a worker."""
    batches: list[tuple[str, str]] = []
    for tenant in range(6):
        _, key = await ApiKeyStore(access.client).add(f"few{tenant}")
        async with door.client(key) as client:
            batches += [(key, (await made(client, [UNSERVED])).id) for _ in range(4)]
    await asyncio.sleep(STALLED_S)  # those that have a place stall by now
    _, good = await ApiKeyStore(access.client).add("good")
    async with door.client(good) as client:
        for _ in range(3):
            assert await begun_after_s(client, worker) < MOST_S
    async with hand_worker(valkey.url, "other") as late:
        for _ in batches:
            await (await late.take()).end(last="done")
    for key, batch_id in batches:
        async with door.client(key) as client:
            assert (await finished(client, batch_id, wait_s=30)).status == "completed"


@pytest.mark.slow
async def test_batches_of_a_slow_queue_keep_their_places(
    door: Gateway, access: GatewayRedis, worker: HandWorker
) -> None:
    """It has a worker: to give places away again and again would cost more than it brings."""
    keys = []
    for tenant in range(4):
        _, key = await ApiKeyStore(access.client).add(f"slow{tenant}")
        async with door.client(key) as client:
            for _ in range(4):
                batch = await made(client, [chat(1, "w1", 2)])
                keys.append(TenantKeys(f"slow{tenant}").batch(batch.id))

    async def holders() -> list[bytes]:
        return [await access.client.hget(key, "holder") for key in keys]

    await until_read(holders, lambda holders: all(holders))
    before = await holders()
    _, key = await ApiKeyStore(access.client).add("late")
    async with door.client(key) as client:
        late = await made(client, [chat(1, "w1", 2)])
        await asyncio.sleep(2.5)
        assert (await client.batches.retrieve(late.id)).status == "validating"
    assert await holders() == before


async def test_tenants_take_turns(access: GatewayRedis) -> None:
    """Who has had a turn comes behind those who wait."""
    batches = OpenBatches(access)
    for place, tenant in enumerate("abc"):
        for number in range(3):
            await batches.schedule(OpenBatch(tenant, f"batch_{number}"), 10 + place)
    assert await batches.tenants_due(100) == ["a", "b", "c"]
    assert await batches.due("a", 100) == [OpenBatch("a", f"batch_{number}") for number in range(3)]
    await batches.end_turn("a", 100)
    assert await batches.tenants_due(100) == ["b", "c", "a"]
    for number in range(3):
        await batches.schedule(OpenBatch("b", f"batch_{number}"), 500 + number)
    await batches.end_turn("b", 100)
    assert await batches.tenants_due(499) == ["c", "a"]
    assert await batches.tenants_due(500) == ["c", "a", "b"]
    await batches.schedule(OpenBatch("b", "batch_9"), 200)  # a turn comes as early as its first batch
    assert await batches.tenants_due(200) == ["c", "a", "b"]
    for number in range(3):
        await batches.unschedule(OpenBatch("c", f"batch_{number}"), 100)
    await batches.end_turn("c", 100)
    assert await batches.count() == 7
    assert await access.client.zrange(OPEN_TENANTS, 0, -1) == [b"a", b"b"]


async def test_a_turn_that_ends_beside_others_is_not_lost(access: GatewayRedis) -> None:
    """Batches come and go between the steps of the end of a turn, in every place."""
    for place in range(4):
        for comes in (True, False):
            await access.client.flushall()
            batches, other = TornBatches(access), OpenBatches(access)
            await other.schedule(OpenBatch("a", "batch_late"), 30_000)

            async def beside(comes: bool = comes, other: OpenBatches = other) -> None:
                if comes:
                    await other.schedule(OpenBatch("a", "batch_new"), 110)
                else:
                    await other.unschedule(OpenBatch("a", "batch_late"), 110)

            batches.tear(place, beside)
            await batches.end_turn("a", 100)
            if batches.steps > place:
                due = await other.tenants_due(110)
                gone = not comes and not await access.client.exists(OPEN_TENANTS)
                assert due == ["a"] or gone, (place, comes)


class TornBatches(OpenBatches):
    """Does something else before the n-th reading or writing of a list."""

    def __init__(self, access: GatewayRedis) -> None:
        super().__init__(access)
        self.steps = 0

    def tear(self, place: int, beside: Callable[[], Awaitable[None]]) -> None:
        client, count = self._redis.client, itertools.count()

        class Torn:
            def __getattr__(torn, name: str) -> Any:
                async def call(*args: Any, **options: Any) -> Any:
                    if next(count) == place:
                        await beside()
                    self.steps += 1
                    return await getattr(client, name)(*args, **options)

                return call

        self._redis = SimpleNamespace(client=Torn(), reach=self._redis.reach)  # type: ignore[assignment]


async def test_batches_of_older_gateways_are_listed(
    access: GatewayRedis, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """They have one list for all tenants, of which damaged members are dropped."""
    batch = await made(client, [chat(1, "w1", 2)])
    job = await worker.take()
    keys = TenantKeys("")
    await access.client.hset(keys.batch(batch.id), "holder", "")  # its gateway is gone
    await access.client.delete(keys.open_batches, OPEN_TENANTS)
    await access.client.zadd(OPEN_BATCHES, {f" {batch.id}": 1, b"\xff \xff": 2, "no batch": 3})
    await job.end(last="done")
    assert (await finished(client, batch.id)).status == "completed"
    await until_read(lambda: access.client.exists(OPEN_BATCHES), lambda count: not count)
    await until_read(lambda: access.client.exists(OPEN_TENANTS), lambda count: not count)
