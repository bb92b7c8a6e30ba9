"""A long backlog: submitting, claiming and the server's memory, with more and more waiting jobs and no
worker. Claims are made by the calls that a worker makes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from ops.bench.growth.part import Outcome, Setting, curve
from ops.bench.measures import percentile
from ops.bench.plots import Panel, Row

from millstream import AsyncClient, ClientOptions, JobFields
from millstream.cli.embedded.embedded_server import EmbeddedServer
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.keys import QueueKeys, ShardKeys

QUEUE = "growth"
X = "waiting"
DEPTHS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
QUICK_DEPTHS = (10, 100)
PIECE = 1000  # jobs of one submit_many
CLAIMS = 200
START_S = 60.0
PROMPT = "The quick brown fox jumps over the lazy dog. " * 5
OPTIONS = ClientOptions(max_entries=10**8, max_bytes=2**44, timeout_s=60.0)


def queue(setting: Setting) -> Outcome:
    found = asyncio.run(_measure(setting))
    submit = [
        curve(found, X, "submitted/s", "submit_many"),
        curve(found, X, "limit submitted/s", "the server: bare XADD of as many bytes", "limit"),
    ]
    claim = [
        curve(found, X, "claim ms P50", "P50"),
        curve(found, X, "claim ms P99", "P99", "tail"),
        curve(found, X, "limit claim ms", "two bare round trips", "limit"),
    ]
    used = [
        curve(found, X, "server MiB", "server"),
        curve(found, X, "limit server MiB", "the requests' bytes", "limit"),
    ]
    panels = [
        Panel(title, "jobs waiting", unit, curves, log_x=True, log_y=True)
        for title, unit, curves in (
            ("Submit", "jobs/s", submit),
            ("Claim: take one entry and start it", "ms", claim),
            ("Memory of the server", "MiB", used),
        )
    ]
    return Outcome("Waiting jobs, nobody serves them", found, panels)


@dataclass(slots=True)
class Backlog:
    client: AsyncClient
    redis: Any
    shard: ShardKeys
    numbers: count[int]
    waiting: int = 0

    async def fill(self, depth: int, until: float) -> float:
        """Submit up to `depth` waiting jobs, until that time of the monotonic clock; returns jobs/s."""
        start, before = time.perf_counter(), self.waiting
        while self.waiting < depth and time.monotonic() < until:
            piece = min(PIECE, depth - self.waiting)
            jobs: list[JobFields] = [
                {"prompt": f"{next(self.numbers)} {PROMPT}", "max_tokens": 16} for _ in range(piece)
            ]
            refused = [one for one in await self.client.submit_many(jobs) if isinstance(one, Exception)]
            assert not refused, refused[0]
            self.waiting += piece
        return (self.waiting - before) / (time.perf_counter() - start)

    async def claim(self) -> float:
        """Take and start one job; returns the seconds."""
        start = time.perf_counter()
        call = calls.take(self.shard, owner="bench", max_entries=1, max_bytes=1 << 24)
        [entry] = await calls.run(self.redis, call)
        job = calls.lane_entry(entry.lane, entry.entry_id, entry.fields)
        reply = await calls.run(
            self.redis,
            calls.start(self.shard, job.claim("bench"), lane=job.lane, nonce=uuid4().hex),
        )
        assert reply.started, f"{job.job_id} was not started"
        self.waiting -= 1
        return time.perf_counter() - start

    async def used_mib(self) -> float:
        info: dict[str, Any] = await self.redis.info("memory")
        return float(info["used_memory"]) / 2**20

    async def held_mib(self) -> float:
        """The requests themselves."""
        return int(await self.redis.get(self.shard.held_bytes) or 0) / 2**20


async def _measure(setting: Setting) -> list[Row]:
    depths = QUICK_DEPTHS if setting.options.quick else DEPTHS
    shard = QueueKeys(QUEUE).shard(0)
    found: list[Row] = []
    with EmbeddedServer(Path(setting.scratch) / "queue") as server:
        redis = Endpoint.of(server.url).commands("growth", timeout_s=60.0)
        await calls.run(redis, calls.join(shard))
        add_s, trip_s = await _bare(redis)
        async with AsyncClient(server.url, queue=QUEUE, options=OPTIONS) as client:
            backlog = Backlog(client, redis, shard, count())
            await backlog.fill(2, time.monotonic() + START_S)  # connects, and loads the scripts
            await backlog.claim()
            empty_mib = await backlog.used_mib()
            until = time.monotonic() + setting.options.seconds
            for depth in setting.within(depths):
                found.append(await _row(backlog, depth, until, empty_mib, add_s, trip_s))
                if found[-1]["waiting"] != depth:
                    setting.notes.append(f"{depth:,} waiting jobs were not reached in time")
        await redis.aclose()
    return found


async def _row(
    backlog: Backlog, depth: int, until: float, empty_mib: float, add_s: float, trip_s: float
) -> Row:
    rate_s = await backlog.fill(depth, until)
    row: Row = {
        "waiting": backlog.waiting,
        "submitted/s": rate_s,
        "limit submitted/s": add_s,
        "server MiB": await backlog.used_mib() - empty_mib,
        "limit server MiB": await backlog.held_mib(),
    }
    claims = sorted([await backlog.claim() * 1e3 for _ in range(min(CLAIMS, backlog.waiting // 2))])
    quantiles: Row = {"claim ms P50": percentile(claims, 0.5), "claim ms P99": percentile(claims, 0.99)}
    return row | quantiles | {"limit claim ms": 2e3 * trip_s}


async def _bare(redis: Any) -> tuple[float, float]:
    """(XADD/s in pipelines as long as those of submit_many, seconds of a PING): the rates of server and
    connection without any protocol.
    """
    payload = {"request": PROMPT.encode() + b"x" * 100}
    start = time.perf_counter()
    for _ in range(8):
        async with redis.pipeline(transaction=False) as pipeline:
            for _ in range(256):
                pipeline.xadd("bare", payload)
            await pipeline.execute()
    add_s = 8 * 256 / (time.perf_counter() - start)
    await redis.delete("bare")
    return add_s, percentile(sorted([await _timed_ping(redis) for _ in range(200)]), 0.5)


async def _timed_ping(redis: Any) -> float:
    start = time.perf_counter()
    await redis.ping()
    return time.perf_counter() - start
