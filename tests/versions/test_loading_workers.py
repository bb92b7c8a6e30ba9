"""Workers that load beside an earlier release: it takes none for one that serves, and loses none of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis
from support.servers.servers import Server
from support.versions.next_version import Build
from support.workers.counting_worker import until
from support.workers.hand_worker import register
from support.workers.work import SHARD, Work

from millstream import AsyncClient
from millstream.wire.keys import GROUP

_UPKEEP = """
import asyncio, sys
from redis.asyncio import Redis
from millstream.wire.keys import QueueKeys
from millstream_worker.upkeep.maintenance import Maintenance

async def main():
    async with Redis.from_url(sys.argv[1]) as redis:
        shard = QueueKeys("default").shard(0)
        await Maintenance(redis, [shard], result_ttl_ms=1000).drop_consumers()
        print(len(await redis.xinfo_consumers(shard.lanes[1], "workers")))

asyncio.run(main())
"""


def run(build: Build, url: str, *arguments: str) -> str:
    """A python of the other build, on this server."""
    command = [sys.executable, *arguments, url]
    return subprocess.run(
        command, env=build.environment, check=True, capture_output=True, text=True, timeout=60
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_an_earlier_release_sees_no_worker_in_one_that_loads(
    client: AsyncClient, redis_client: Redis, server: Server, tokenizer: Path, tmp_path: Path, earlier: Build
) -> None:
    await client.submit("w1", max_tokens=3)
    with Work(server, tokenizer, tmp_path).process(load_s=60.0, renew_s=2.0, lease_s=4.0):

        async def seen() -> bool:
            return len((await client.queue_info()).loading or ()) == 1

        async def consumers() -> int:
            return len(await redis_client.xinfo_consumers(SHARD.lanes[1], GROUP))

        await until(seen)
        shown = json.loads(run(earlier, server.url, "-m", "millstream", "queue", "--json", "--redis-url"))
        assert (shown["workers"], shown["lanes"][1]["waiting"], shown["loading"]) == ([], 1, [])
        assert run(earlier, server.url, "-c", _UPKEEP) == "0\n"  # its upkeep takes the worker for dead …
        await until(seen)  # … until the next heartbeat
        assert await consumers() == 1


async def test_a_heartbeat_without_times_is_shown(client: AsyncClient, server: Server) -> None:
    """An earlier worker, whose engine is not ready."""
    await client.submit("w1")
    register(server.port, SHARD, state="starting")
    [one] = (await client.queue_info()).workers or ()
    assert (one.state, one.step, one.heartbeat_s, one.late) == ("starting", "", None, False)
