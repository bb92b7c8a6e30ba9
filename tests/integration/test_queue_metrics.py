"""A queue's series where no worker is there to export them: a gateway's page, and the exporter's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from support.gateway import gateway
from support.http import fetch
from support.scrapes import OPEN_METRICS, queue_exporter, scrape, until_shown
from support.servers.servers import Server
from support.workers.counting_worker import until_running, write_tokenizer
from support.workers.work import Work

from millstream import AsyncClient

Exporter = Callable[[str], AbstractContextManager[int]]
UP, WORKERS, SERVING = "queue_up{default}", "workers{default}", "worker_states{default,serving}"
BATCH, INTERACTIVE = "jobs_queued{batch,default}", "jobs_queued{interactive,default}"


@contextmanager
def gateway_port(url: str) -> Iterator[int]:
    with gateway(url) as door:
        yield door.port


BOTH_PAGES = pytest.mark.parametrize("exporter", [gateway_port, queue_exporter])


@pytest.mark.slow
@BOTH_PAGES
async def test_a_queue_has_its_series_in_all_troubles(exporter: Exporter, tmp_path: Path) -> None:
    """Without a worker, with one, after its kill -9, while the server stands still, and while it is away."""
    with Server("valkey", appendonly="yes") as server, exporter(server.url) as port:
        assert server.process is not None
        await until_shown(port, {UP: 1, WORKERS: 0, SERVING: 0, BATCH: 0, "shards{default}": 0})
        async with AsyncClient(server.url) as client:
            job = await client.submit("w1", max_tokens=9)
            await client.submit_many([{"prompt": "w1", "lane": "interactive"}] * 3)
            seen = await until_shown(port, {BATCH: 1, INTERACTIVE: 3, WORKERS: 0, "dead_letters{default}": 0})
            assert 0 < seen["oldest_queued_age_seconds{batch,default}"] < 60
            assert seen["held_bytes{default}"] > 0
            work = Work(server, write_tokenizer(tmp_path), tmp_path)
            work.hold(3)
            with work.process() as worker:
                await until_running(client, job)
                await until_shown(port, {WORKERS: 1, SERVING: 1, BATCH: 0, "queue_models{default}": 1})
                worker.kill()
                await until_shown(port, {UP: 1, WORKERS: 0, SERVING: 0, "queue_models{default}": 0})
        os.kill(server.process.pid, signal.SIGSTOP)
        assert list(of_queues(await until_shown(port, {UP: 0}))) == [UP]
        os.kill(server.process.pid, signal.SIGCONT)
        await until_shown(port, {UP: 1, WORKERS: 0})
        server.kill()
        assert list(of_queues(await until_shown(port, {UP: 0}))) == [UP]
        server.start()
        await until_shown(port, {UP: 1, "shards{default}": 1})


def of_queues(seen: dict[str, float]) -> Iterator[str]:
    return (name for name in seen if not name.startswith("gateway_"))


async def test_only_the_exporter_tells_whose_jobs_wait(valkey: Server) -> None:
    """The gateway's page asks for no key."""
    parked = "tenant_jobs_parked{default,acme}"
    with gateway_port(valkey.url) as page, queue_exporter(valkey.url) as port:
        async with AsyncClient(valkey.url) as client:
            await client.submit_many([{"prompt": "w1", "max_tokens": 1, "tenant": "acme"}] * 300)
        assert (await until_shown(port, {BATCH: 300}))[parked] == 300 - 128
        assert [name for name in await until_shown(page, {BATCH: 300}) if "acme" in name] == []


@BOTH_PAGES
async def test_open_metrics_come_where_they_are_asked_for(exporter: Exporter, valkey: Server) -> None:
    asked = f"{OPEN_METRICS};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4"
    strange = ("", "*/*", ";;,", f"{OPEN_METRICS};version=x", f"{OPEN_METRICS};version=99")
    with exporter(valkey.url) as port:
        for accept in (asked, "text/plain", *strange):
            content_type, seen = await asyncio.to_thread(scrape, port, accept)
            assert seen[UP] == 1
            is_open = content_type.startswith(f"{OPEN_METRICS}; version=1.0.0")
            assert is_open or content_type.startswith("text/plain; version=0.0.4")
            assert is_open is (OPEN_METRICS in accept)
        assert (await asyncio.to_thread(fetch, port, "/nothing"))[0] == 404
