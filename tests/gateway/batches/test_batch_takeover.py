"""Gateways and the server die in the middle of a batch: another gateway goes on, and no row is lost or
doubled."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest
from support.batches import CHAT, Line, answered, chat, counts, files_of, finished, made, rows_of, upload
from support.gateway import Gateway, gateway
from support.grouped_lines import chats_alike, number_of
from support.servers.servers import Server, lasting_server
from support.workers.counting_worker import counted, model_name, serving, until, until_read, write_tokenizer
from support.workers.hand_worker import hand_worker

from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.redis.tenant_keys import OPEN_TENANTS, TenantKeys

LINES = 160


class Replicas:
    """Two gateways with one store of files. `port`s change with their replacements."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self._arguments = ("--files-url", folder, "--batch-lease-s", 0.6)
        self._server = server
        self.alive = [self._start() for _ in range(2)]

    def _start(self) -> Gateway:
        return Gateway(self._server.url, *self._arguments)

    async def replace(self, place: int) -> None:
        """SIGKILL, and another one comes up."""
        await asyncio.to_thread(self.alive[place].close)
        self.alive[place] = await asyncio.to_thread(self._start)

    def close(self) -> None:
        for one in self.alive:
            one.close()


@pytest.fixture
def durable() -> Iterator[Server]:
    with lasting_server() as server:
        yield server


@pytest.fixture
def replicas(durable: Server, tmp_path: Path) -> Iterator[Replicas]:
    with contextlib.closing(Replicas(durable, tmp_path / "files")) as made:
        yield made


async def rows_read(replicas: Replicas, path: str) -> list[Line]:
    """All that the stream of results says, by a reader that comes back where it was."""
    rows: list[Line] = []
    while True:
        url = random.choice(replicas.alive).url
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=10) as http:
                async with http.stream("GET", path, params={"after": len(rows)}) as answer:
                    if answer.status_code == 200:
                        async for line in answer.aiter_lines():
                            rows += rows_of(line.encode())
                        return rows
        except httpx2.HTTPError:
            pass
        await asyncio.sleep(0.1)


async def struck(replicas: Replicas, server: Server, gate: Path) -> None:
    """Gateways are killed, and once the server is: while rows end, and while none can."""
    draws = random.Random(20)
    # Soon no row gets its second token, however long gateways take to start.
    asyncio.get_running_loop().call_later(1.5, (gate / "1").touch)
    for blow in range(5):
        await asyncio.sleep(draws.uniform(0.3, 0.8))
        if blow == 2:
            await until((gate / "1").exists)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        else:
            await replicas.replace(draws.randrange(2))


@pytest.mark.slow
async def test_no_row_is_lost_or_doubled(
    replicas: Replicas, durable: Server, gate: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = write_tokenizer(tmp_path_factory.mktemp("chat"), chat=True)
    lines = [chat(number, f"w{number}", 2 + number % 5) for number in range(1, LINES + 1)]
    wanted = {f"r{number}": counted(number + 1, 2 + number % 5) for number in range(1, LINES + 1)}
    async with serving(durable, model_name(tokenizer, step_s=0.05, rows=4, gate=gate)):
        async with replicas.alive[0].client() as client:
            batch = await made(client, lines)
        reading = asyncio.ensure_future(rows_read(replicas, f"/v1/batches/{batch.id}/results"))
        await struck(replicas, durable, gate)
        async with replicas.alive[1].client() as client:
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
            (gate / "1").unlink()
            done = await finished(client, batch.id, wait_s=60)
            assert (done.status, done.error_file_id) == ("completed", None)
            assert counts(done) == (LINES, 0)
            output, _ = await files_of(client, done)
            assert answered(output) == wanted
            async with asyncio.timeout(30):
                assert answered(await reading) == wanted
            usage = done.to_dict()["usage"]
            assert usage["output_tokens"] == sum(len(text.split()) for text in wanted.values())


async def test_a_gateway_that_is_asked_to_go_gives_its_batches_back(valkey: Server, tmp_path: Path) -> None:
    """At once, although a request still has its grace; the other gateway need not wait for the lease."""
    arguments = ("--files-url", tmp_path / "files", "--batch-lease-s", 600, "--grace-s", 20)
    async with hand_worker(valkey.url) as worker:
        with gateway(valkey.url, *arguments) as leaving:
            async with leaving.client() as client:
                batch = await made(client, [chat(number, "w1", 2) for number in range(3)])
                job = await worker.take()
                waiting = asyncio.ensure_future(
                    client.completions.create(
                        model="default", prompt="x", extra_body={"service_tier": "flex"}
                    )
                )
                key = TenantKeys("").batch(batch.id)
                holder = await worker.redis.hget(key, "holder")
                leaving.process.send_signal(signal.SIGTERM)
                with gateway(valkey.url, *arguments) as door:
                    await until_read(
                        lambda: worker.redis.hget(key, "holder"), lambda now: now not in (holder, b"")
                    )
                    assert leaving.process.poll() is None
                    await job.end(last="one")
                    for _ in range(2):
                        await (await worker.take()).end(last="more")
                    async with door.client() as other:
                        done = await finished(other, batch.id)
                        assert (done.status, counts(done)) == ("completed", (3, 0))
                    await until_read(lambda: worker.redis.exists(OPEN_TENANTS), lambda count: not count)
                    await (await worker.take()).end(last="late")
                    assert (await waiting).choices[0].text == "late"


async def test_a_batch_of_groups_is_taken_over(valkey: Server, tmp_path: Path) -> None:
    """Rows that are written are not read again, and have numbers above that of the requests."""
    arguments = ("--files-url", tmp_path / "files", "--batch-lease-s", 0.6)
    async with hand_worker(valkey.url) as worker:
        with gateway(valkey.url, *arguments) as killed:
            async with killed.client() as client:
                batch = await made(client, [part for line in chats_alike(9) for part in (line, b"\n")])
            for _ in range(2):
                job = await worker.take()
                await job.end(last=str(number_of(job)))
            key = TenantKeys("").batch(batch.id)
            await until_read(lambda: worker.redis.hget(key, "completed"), lambda rows: rows == b"2")
        with gateway(valkey.url, *arguments) as door:
            for _ in range(7):
                job = await worker.take()
                await job.end(last=str(number_of(job)))
            async with door.client() as client:
                done = await finished(client, batch.id)
                output, errors = await files_of(client, done)
    assert errors == []
    assert answered(output) == {f"r{number}": str(number) for number in range(9)}
    assert (done.to_dict()["groups"], done.to_dict()["shared_tokens"]) == (3, 6 * 256)


@pytest.mark.parametrize(("in_order", "order"), [("false", [0, 3, 1, 4, 2, 5]), ("true", [0, 1, 2, 3, 4, 5])])
async def test_who_takes_a_batch_over_keeps_to_its_order(
    valkey: Server, catalogue: BatchCatalogue, tmp_path: Path, in_order: str, order: list[int]
) -> None:
    """Whoever validated it sent none of its lines."""
    async with hand_worker(valkey.url) as worker, AsyncExitStack() as stack:
        arguments = ("--files-url", tmp_path / "files")
        with gateway(valkey.url, *arguments) as gone:
            async with gone.client() as client:
                file_id = await upload(client, chats_alike(6))
        fields = {
            "endpoint": CHAT, "input_file_id": file_id, "completion_window": "24h", "metadata": "null",
            "in_order": in_order, "total": "6", "models": '{"default": "default"}', "in_progress_s": "1",
        }  # fmt: skip
        await catalogue.create("", "batch_1", fields, window_s=600, charge="", lasts_s=600)
        await worker.redis.hset(TenantKeys("").batch("batch_1"), "status", "in_progress")
        stack.enter_context(gateway(valkey.url, *arguments))
        taken: list[int] = []
        for _ in order:
            job = await worker.take()
            taken.append(number_of(job))
            await job.end(last="done")
    assert taken == order
