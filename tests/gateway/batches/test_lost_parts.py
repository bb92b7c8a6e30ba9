"""A batch outlasts a server that has lost its last writes, and a store that has lost parts or was away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types import Batch
from prometheus_client import CollectorRegistry
from support.batches import (
    Line,
    answered,
    chat,
    counts,
    faults,
    files_of,
    finished,
    made,
    rows_counted,
    rows_of,
)
from support.gateway import Gateway, gateway
from support.servers.servers import Server
from support.workers.counting_worker import until
from support.workers.hand_worker import HandWorker, hand_worker

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import owner_of_part, part_name
from millstream.gateway.batches.records.batch_record import PARTS_KEPT_S
from millstream.gateway.batches.records.line_set import ranges_of
from millstream.gateway.batches.runner.part_sweep import PartSweep
from millstream.gateway.context import GatewayContext
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.redis.gateway_redis import GatewayRedis
from millstream.gateway.redis.tenant_keys import STORE, TenantKeys

KEYS = TenantKeys("")
LINES = [chat(number, f"w{number}", 2) for number in range(1, 4)]
ALL = {f"r{number}": f"w{number}" for number in range(1, 4)}


@pytest.fixture
def door(valkey: Server, tmp_path: Path) -> Iterator[Gateway]:
    with gateway(valkey.url, "--files-url", tmp_path / "files") as running:
        yield running


def parts_in(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "batches").rglob("*") if path.is_file())


async def answer(worker: HandWorker, count: int) -> None:
    """Each job in the text that it came with."""
    for _ in range(count):
        job = await worker.take()
        [message] = job.request.messages or ()
        await job.end(last=str(message.content))


def numbers_in(part: Path) -> list[int]:
    return [int(row["custom_id"][1:]) for row in rows_of(part.read_bytes())]


async def results(client: openai.AsyncOpenAI, batch: Batch, after: int, count: int) -> list[Line]:
    """So many rows of its results, behind the first ones."""
    rows: list[Line] = []
    path = f"/batches/{batch.id}/results?after={after}"
    async with client._client.stream("GET", client.base_url.join(path.removeprefix("/"))) as response:
        async for line in response.aiter_lines():
            rows += rows_of(line.encode())
            if len(rows) == count:
                return rows
    return rows


@pytest.mark.slow
async def test_a_lost_part_is_written_again_in_its_place(
    valkey: Server, tmp_path: Path, access: GatewayRedis
) -> None:
    """A reader that has its rows gets them once, and one that has none gets all."""
    folder = tmp_path / "files"
    async with hand_worker(valkey.url) as worker:
        with gateway(valkey.url, "--files-url", folder, "--batch-lease-s", 0.3) as first:
            async with first.client() as client:
                batch = await made(client, LINES)
                await answer(worker, 2)
                await until(lambda: rows_counted(client, batch.id, 2))
                had = await results(client, batch, 0, 2)
        [lost] = parts_in(folder)
        lost.unlink()
        with gateway(valkey.url, "--files-url", folder) as second:
            async with second.client() as client:
                await answer(worker, 3)
                done = await finished(client, batch.id)
                assert (done.status, counts(done)) == ("completed", (3, 0))
                output, _ = await files_of(client, done)
                assert answered(output) == ALL
                assert answered(had + await results(client, batch, 2, 1)) == ALL
                assert answered(await results(client, batch, 0, 3)) == ALL


@pytest.mark.parametrize("status", ["in_progress", "finalizing"])
async def test_a_batch_that_a_failover_opens_again_ends(
    tmp_path: Path, access: GatewayRedis, worker: HandWorker, status: str, client: openai.AsyncOpenAI
) -> None:
    """As its server came back with the record of a moment before its end, and one of its parts is lost."""
    batch = await made(client, LINES)
    await answer(worker, 3)
    done = await finished(client, batch.id)
    parts = parts_in(tmp_path / "files")
    key = KEYS.batch(batch.id)
    fields = {"status": status, "ends_as": "completed", "holder": ""}
    await access.client.hset(key, mapping=fields)
    await access.client.hdel(key, "output_file_id", "completed_s")
    names = [
        part.split()[1].decode() for part in await access.client.lrange(KEYS.batch_parts(batch.id), 0, -1)
    ]
    by_name = {path.name: numbers_in(path) for path in parts}
    await access.client.rpush(KEYS.batch_lines(batch.id), *(ranges_of(by_name[name]) for name in names))
    next(path for path in parts if path.name == names[-1]).unlink()
    assert (await client.batches.retrieve(batch.id)).status == status
    await answer(worker, len(by_name[names[-1]]))
    again = await finished(client, batch.id)
    assert (again.status, again.output_file_id) == ("completed", done.output_file_id)
    assert len((await files_of(client, again))[0]) == 3


@pytest.mark.slow
async def test_a_store_that_goes_away_is_waited_for(
    tmp_path: Path, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """Nothing is written where it was, no line counts as lost, and no input as deleted."""
    folder, away = tmp_path / "files", tmp_path / "away"
    batch = await made(client, LINES)
    await answer(worker, 2)
    await until(lambda: rows_counted(client, batch.id, 2))
    folder.rename(away)
    folder.mkdir()  # as a mount point is left behind
    await answer(worker, 1)
    with pytest.raises(openai.InternalServerError):
        await client.files.create(file=("x", b"x"), purpose="user_data")
    assert list(folder.rglob("*")) == []
    folder.rmdir()
    away.rename(folder)
    done = await finished(client, batch.id)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert answered((await files_of(client, done))[0]) == ALL


@pytest.mark.slow
async def test_a_batch_whose_store_is_gone_for_good_fails(
    tmp_path: Path, access: GatewayRedis, worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    """A day after its time: no status is without an end."""
    batch = await made(client, LINES)
    await answer(worker, 1)
    await until(lambda: rows_counted(client, batch.id, 1))
    (tmp_path / "files").rename(tmp_path / "gone")
    await answer(worker, 2)
    await access.client.hset(KEYS.batch(batch.id), "expires_s", int(time.time()) - 90_000)
    ended = await finished(client, batch.id)
    assert ended.status == "failed"
    assert [code for _, code, _ in faults(ended)] == ["store_unavailable"]


async def test_parts_are_swept_a_day_after_their_batch(
    valkey: Server, tmp_path: Path, access: GatewayRedis, catalogue: BatchCatalogue
) -> None:
    folder = tmp_path / "files"
    settings = GatewaySettings(redis_url=valkey.url, files_url=str(folder))
    context = GatewayContext(settings, GatewayMetrics(CollectorRegistry()))
    old_s = time.time() - PARTS_KEPT_S - 60
    fields = {"endpoint": "e", "input_file_id": "f", "completion_window": "24h"}
    for name in ("open", "ended", "fresh"):
        await catalogue.create("acme", f"batch_{name}", fields, window_s=60, charge="", lasts_s=60)
    key = TenantKeys("acme").batch
    ended = {"status": "completed", "completed_s": int(old_s)}
    await access.client.hset(key("batch_ended"), mapping=ended)
    await access.client.hset(key("batch_fresh"), mapping=ended | {"completed_s": int(time.time())})
    await context.marker.confirm()
    await access.client.hset(STORE, "since_ms", 0)
    await context.marker.confirm(now=True)
    for name in ("open", "ended", "fresh", "lost", "young"):
        path = f"batches/batch_{name}/{part_name('acme')}"
        assert owner_of_part(path) == ("acme", f"batch_{name}")
        await context.store.put(path, b"x")
        if name != "young":
            os.utime(folder / path, (old_s, old_s))
    sweep = PartSweep(context, catalogue)
    assert [await sweep.sweep() for _ in range(2)] == [2, 0]
    left = {path.parent.name for path in parts_in(folder)}
    assert left == {"batch_open", "batch_fresh", "batch_young"}
    await context.aclose()
