"""Whatever stands in the records of batches harms these batches only."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from support.batches import chat, finished, made, rows_counted
from support.gateway import Gateway
from support.workers.counting_worker import until
from support.workers.hand_worker import HandWorker

from millstream.gateway.batches.records.open_batches import OpenBatches
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import OPEN_BATCHES, OPEN_TENANTS, TenantKeys

KEYS = TenantKeys("")
ID = "batch_damaged"
RECORD: dict[str, Any] = {
    "status": "in_progress", "endpoint": "e", "input_file_id": "f", "completion_window": "24h",
    "created_s": 1, "expires_s": 4_000_000_000, "charge": "", "holder": "", "until_ms": 0, "total": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"status": b"\xff"}, {"status": "lost"}, {"expires_s": "x"}, {"holder": "h", "until_ms": "x"},
        {"total": b"\xff"}, {},
    ],
    ids=["no_text", "no_status", "no_time", "no_lease", "no_total", "another_type"],
)  # fmt: skip
async def test_a_damaged_record_keeps_no_other_waiting(
    door: Gateway,
    access: GatewayRedis,
    worker: HandWorker,
    damage: dict[str, Any],
    client: openai.AsyncOpenAI,
) -> None:
    redis = access.client
    if damage:
        await redis.hset(KEYS.batch(ID), mapping=RECORD | damage)
    else:
        await redis.set(KEYS.batch(ID), "x")
    await redis.zadd(KEYS.batches, {ID: 1})
    await redis.zadd(KEYS.open_batches, {ID: 0, b"\xff": 0})
    await redis.zadd(OPEN_TENANTS, {"": 0, b"\xff": 0, "no tenant": 0})
    await redis.zadd(OPEN_BATCHES, {b"\xff": 0})
    assert await OpenBatches(access).count() == 2
    batch = await made(client, [chat(1, "w1", 2)])
    await (await worker.take()).end(last="done")
    assert (await finished(client, batch.id)).status == "completed"
    listed = [one.id async for one in client.batches.list()]
    assert batch.id in listed
    assert door.process.poll() is None


async def test_damaged_lists_keep_no_other_waiting(
    access: GatewayRedis, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """Neither the list of another tenant, nor that of older gateways."""
    await access.client.set(TenantKeys("bad").open_batches, "x")
    await access.client.set(OPEN_BATCHES, "x")
    await access.client.zadd(OPEN_TENANTS, {"bad": 0})
    batch = await made(client, [chat(1, "w1", 2)])
    await (await worker.take()).end(last="done")
    assert (await finished(client, batch.id)).status == "completed"
    assert await OpenBatches(access).count() == 0


@pytest.mark.slow
async def test_damaged_lines_of_a_batch_cost_no_time(
    access: GatewayRedis, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """Neither the gateway's loop, nor its memory: lines are those of the input."""
    batch = await made(client, [chat(number, "w1", 2) for number in range(2)])
    await (await worker.take()).end(last="done")
    await until(lambda: rows_counted(client, batch.id, 1))
    await access.client.rpush(KEYS.batch_lines(batch.id), "1-400000000")
    await access.client.rpush(KEYS.batch_parts(batch.id), "output x 1 2")
    await access.client.hset(KEYS.batch(batch.id), "holder", "")  # its gateway is taken for dead
    other = await made(client, [chat(1, "w2", 2)])
    while (await worker.take()).request.messages[0].content != "w2":  # type: ignore[index]
        pass
    assert (await client.batches.retrieve(batch.id)).status == "in_progress"
    assert (await client.batches.cancel(other.id)).status in ("cancelling", "cancelled")
