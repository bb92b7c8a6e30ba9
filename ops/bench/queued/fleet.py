"""A submit, and a take of 8 jobs, of a lane that ever more workers serve: microseconds of the server, by its
own count (`INFO commandstats`). No worker runs: consumers are registered, and hold jobs, as workers do.

    python -m ops.bench fleet [--workers 4 100 1000] [--url redis://127.0.0.1:6379/15]

As many jobs run in each case, and jobs that run stay in their lane: so each submit counts it. The takes find
a lane with its window full, and jobs parked beside it. Each figure is the median of several rounds, in which
the cases take turns. Nobody else may use the server meanwhile; without `--url` it is an embedded one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from ops.bench import machine
from ops.bench.command_line import parser_of

from millstream.cli.embedded.embedded_server import EmbeddedServer
from millstream.wire import calls
from millstream.wire.connection import Endpoint
from millstream.wire.keys import Lane, QueueKeys

RUNNING = 1000  # jobs that workers hold
SUBMITS = 100  # fewer than a window has
WINDOW = 128
TAKES, TAKEN = 40, 8
ROUNDS = 5
BAR = 1.3  # times the cost with the fewest workers

Cost = tuple[float, float]  # microseconds of a submit, of a take


def main() -> None:
    options = _options()
    print(machine.describe())
    with contextlib.ExitStack() as stack:
        url = options.url
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-"))
            url = stack.enter_context(EmbeddedServer(Path(folder))).url
        version, costs = asyncio.run(measured(url, options.workers))
    print(f"{version}: {RUNNING:,} jobs run\n\n| workers | submit µs | take of {TAKEN} µs |\n|---|---|---|")
    for workers, (submit_us, take_us) in costs.items():
        print(f"| {workers:,} | {submit_us:.1f} | {take_us:.1f} |")
    print("| " + " | ".join(("most / fewest", *(f"{one:.2f}x" for one in growth(costs)))) + " |")
    print(f"\nThe bar is {BAR}x: {'kept' if max(growth(costs)) <= BAR else 'NOT kept'}.")


def growth(costs: dict[int, Cost]) -> Sequence[float]:
    """Returns by how much a submit and a take cost more with most workers than with fewest."""
    fewest, most = costs[min(costs)], costs[max(costs)]
    return [one / other for one, other in zip(most, fewest, strict=True)]


async def measured(url: str, counts: Sequence[int], rounds: int = ROUNDS) -> tuple[str, dict[int, Cost]]:
    """Returns the server's name and version, and the cost of each count of workers."""
    async with Endpoint.of(url).commands("fleet", timeout_s=60.0) as redis:
        info: dict[str, Any] = await redis.info("server")
        name = info.get("server_name", "redis")
        found: dict[int, list[Cost]] = {workers: [] for workers in counts}
        for _ in range(rounds):
            for workers in counts:
                async with _Fleet.gathered(redis, workers) as fleet:
                    found[workers].append(await fleet.cost())
    costs = {
        workers: (median(submit for submit, _ in rows), median(take for _, take in rows))
        for workers, rows in found.items()
    }
    return f"{name} {info.get('valkey_version', info['redis_version'])}", costs


class _Fleet:
    """A queue of its own, with consumers that hold jobs."""

    def __init__(self, redis: Any, workers: int) -> None:
        self._redis = redis
        self._keys = QueueKeys(f"fleet-{uuid4().hex}").shard(0)
        self._names = [f"worker-{number}" for number in range(workers)]

    @classmethod
    @contextlib.asynccontextmanager
    async def gathered(cls, redis: Any, workers: int) -> AsyncIterator[_Fleet]:
        fleet = cls(redis, workers)
        try:
            await fleet._gather()
            yield fleet
        finally:
            left = [key async for key in redis.scan_iter(f"{fleet._keys.tag}*", count=1000)]
            await redis.unlink(*left)

    async def cost(self) -> Cost:
        before = await self._spent_us()
        await self._submit(SUBMITS)
        submits_us = await self._spent_us() - before
        await self._submit(TAKES * TAKEN + WINDOW)
        before = await self._spent_us()
        for number in range(TAKES):
            await self._take(number)
        takes_us = await self._spent_us() - before
        assert await self._redis.exists(self._keys.parked(Lane.BATCH)), "the last take found no parked jobs"
        return submits_us / SUBMITS, takes_us / TAKES

    async def _gather(self) -> None:
        for name in self._names:
            await calls.run(self._redis, calls.join(self._keys, owner=name))
        for number in range(RUNNING // TAKEN):
            await self._submit(TAKEN)
            await self._take(number)

    async def _submit(self, count: int) -> None:
        for _ in range(count):
            job_id = f"0-{uuid4().hex}"
            call = calls.submit(
                self._keys, job_id=job_id, lane=Lane.BATCH, payload=b"x" * 200, digest="d", version=1,
                deadline_ms=None, stream=False, max_entries=10**9, max_bytes=2**40,
            )  # fmt: skip
            await calls.run(self._redis, call)

    async def _take(self, number: int) -> None:
        owner = self._names[number % len(self._names)]
        call = calls.take(self._keys, owner=owner, max_entries=TAKEN, max_bytes=1 << 24)
        assert len(await calls.run(self._redis, call)) == TAKEN

    async def _spent_us(self) -> int:
        """Returns the server's microseconds in scripts so far."""
        stats: dict[str, Any] = await self._redis.info("commandstats")
        return sum(stats[name]["usec"] for name in ("cmdstat_eval", "cmdstat_evalsha") if name in stats)


def _options() -> argparse.Namespace:
    parser = parser_of("fleet", __doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 100, 1000])
    parser.add_argument("--url", help="a server without other users; default: an embedded one")
    return parser.parse_args()


if __name__ == "__main__":
    main()
