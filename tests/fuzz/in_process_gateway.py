"""The gateway's application in this process, with a Valkey and a worker by hand of its own. Each request
meets the same state: one file, an open batch, one that has ended, and three keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError
from support.servers.servers import Server
from support.workers.hand_worker import HandWorker, hand_worker, register

from fuzz.http_exchange import HttpExchange, Reply
from fuzz.target import folder
from millstream.gateway.auth.api_keys import ApiKey
from millstream.gateway.batches.records.batch_catalogue import BatchCatalogue
from millstream.gateway.batches.records.batch_part import BatchPart
from millstream.gateway.batches.records.batch_record import BatchRecord, RowKind
from millstream.gateway.context import GatewayContext
from millstream.gateway.files.store.file_record import FileRecord, object_path
from millstream.gateway.gateway_app import application
from millstream.gateway.gateway_metrics import GatewayMetrics
from millstream.gateway.gateway_settings import GatewaySettings
from millstream.gateway.redis.tenant_keys import API_KEYS, TenantKeys
from millstream.wire.keys import Lane
from millstream.wire.versions import TAKEN

TENANT = "t"
FREE_KEY, LIMITED_KEY, NARROW_KEY = "ms-free", "ms-limited", "ms-narrow"
_MOST = 2**40 - 1
KEYS = {
    FREE_KEY: ApiKey(tenant=TENANT),
    LIMITED_KEY: ApiKey(
        tenant=TENANT,
        requests_per_min=2,
        tokens_per_min=_MOST,
        max_enqueued_tokens=_MOST,
        queues=("default",),
    ),
    NARROW_KEY: ApiKey(tenant="other", lanes=(Lane.INTERACTIVE,), tokens_per_min=50),
}
FILE, OPEN, ENDED = f"file-{0:032x}", "batch_open", "batch_ended"
CONTENT = b'{"custom_id": "a"}\n' * 20
ROWS = b'{"id": "r1"}\n{"id": "r2"}\n'
MOST_BODY, MOST_FILE = 100_000, 5000


class InProcessGateway:
    """Its loop stands still between requests."""

    def __init__(self) -> None:
        self.server = Server("valkey").start()
        self.folder = folder() / "gateway"
        self.troubles: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.troubles.append(str(context)))
        logging.getLogger("millstream").addHandler(_Troubles(self.troubles))
        logging.getLogger("python_multipart").addHandler(logging.NullHandler())  # it notes each damaged body
        settings = GatewaySettings(
            redis_url=self.server.url, queues=("default", "other"), disconnect_grace_s=0,
            max_body_bytes=MOST_BODY, files_url=str(self.folder), max_file_bytes=MOST_FILE,
        )  # fmt: skip
        registry = CollectorRegistry()
        self._gateway = GatewayContext(settings, GatewayMetrics(registry))
        self._app = application(self._gateway, registry, 10)
        self._admin = self.server.admin()
        self._loop.run_until_complete(self._furnish())
        self._objects = {path: path.read_bytes() for path in self._stored()}
        self._records = {key: self._admin.dump(key) for key in self._admin.scan_iter()}
        self._worker = self._loop.create_task(self._work())

    def ask(self, data: bytes, *, leaves: bool) -> Reply:
        """Raises NoRequest; AssertionError for an error in the log, or an object that nobody knows."""
        exchange = HttpExchange(data, leaves=leaves)
        self.troubles.clear()
        try:
            reply = self._loop.run_until_complete(exchange.through(self._app))
            assert not self.troubles, f"{reply.status} and in the log: {self.troubles[0]}"
            assert not self._worker.done(), f"the worker cannot read a job: {self._worker}"
            if reply.status >= 400:
                assert self._stored() <= set(self._objects), f"{reply.status} leaves an object"
        finally:
            if exchange.reply.method not in ("GET", "HEAD"):
                self._restore()
        return reply

    def close(self) -> None:
        self._worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._worker)
        self._loop.run_until_complete(self._gateway.aclose())
        self._loop.close()
        self._admin.close()
        self.server.remove()

    async def _furnish(self) -> None:
        gateway = self._gateway
        rows = {hashlib.sha256(key.encode()).hexdigest(): one.model_dump_json() for key, one in KEYS.items()}
        await gateway.redis.client.hset(API_KEYS, mapping=rows)
        await gateway.marker.confirm()
        await gateway.store.put(object_path(TENANT, FILE), CONTENT)
        await gateway.files.add(FileRecord(FILE, TENANT, "é .jsonl", "batch", len(CONTENT), 1, None))
        catalogue = BatchCatalogue(gateway.redis)
        fields = {"endpoint": "/v1/completions", "input_file_id": FILE, "completion_window": "24h"}
        for id in (OPEN, ENDED):
            made = await catalogue.create(TENANT, id, fields, window_s=86_400, charge="", lasts_s=86_400)
            await self._add_rows(made)
        ended = {"status": "completed", "completed": "1", "failed": "1", "total": "2"}
        await gateway.redis.client.hset(TenantKeys(TENANT).batch(ENDED), mapping=ended)
        async with hand_worker(self.server.url) as worker:
            register(self.server.port, worker.keys, version_max=str(TAKEN.high))

    async def _add_rows(self, batch: BatchRecord) -> None:
        part = BatchPart(RowKind.OUTPUT, "p1", 2, len(ROWS))
        await self._gateway.store.put(f"{batch.folder}/{part.name}", ROWS)
        await self._gateway.redis.client.rpush(TenantKeys(TENANT).batch_parts(batch.id), part.text())

    async def _work(self) -> None:
        async with hand_worker(self.server.url) as worker:
            while True:
                with contextlib.suppress(ResponseError):  # its stream is away for a moment
                    await _answer(worker)

    def _stored(self) -> set[Path]:
        """Objects, without those that are being written."""
        return {path for path in self.folder.rglob("*") if path.is_file() and "#" not in path.name}

    def _restore(self) -> None:
        with self._admin.pipeline(transaction=True) as pipeline:
            pipeline.flushdb()
            for key, value in self._records.items():
                pipeline.restore(key, 0, value)
            pipeline.execute()
        stored = self._stored()
        for path in stored - set(self._objects):
            path.unlink(missing_ok=True)
        for path in set(self._objects) - stored:
            path.write_bytes(self._objects[path])


class _Troubles(logging.Handler):
    """Keeps what is logged as an error, or as a server that does not answer."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        self._found.append(record.getMessage()[:3000])


async def _answer(worker: HandWorker) -> Any:
    job = await worker.take()
    await job.say("w1 ")
    await job.end(last="w2")


@cache
def in_process_gateway() -> InProcessGateway:
    """Of this process; ends with it."""
    made = InProcessGateway()
    Finalize(None, made.close, exitpriority=1)  # also in a child of multiprocessing, which runs no atexit
    return made
