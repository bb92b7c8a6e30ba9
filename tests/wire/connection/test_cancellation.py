"""A task in the middle of a command can always be cancelled."""

from __future__ import annotations

import asyncio
import random

from support.servers.servers import Server

from millstream.wire.connection import Endpoint


async def test_no_cancellation_is_swallowed(valkey: Server) -> None:
    redis = Endpoint.of(valkey.url).commands("cancelled", retries=3)

    async def work() -> None:
        while True:
            async with redis.pipeline(transaction=False) as pipeline:
                for _ in range(20):
                    pipeline.get("a")
                await pipeline.execute()

    rng = random.Random(5)
    for _ in range(300):
        task = asyncio.create_task(work())
        for _ in range(rng.randrange(1, 40)):  # to any point of a command, or of its connection's start
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=10)
        assert done, "the cancellation was lost: the task goes on"
    await redis.aclose()
