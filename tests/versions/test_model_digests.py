"""Workers of this build beside earlier ones, which report no digest of their model: none is compared with
them, and what either has begun the other goes on with."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.asyncio import Redis
from support.servers.servers import Server
from support.versions.next_version import Build
from support.workers.counting_worker import counted, model_name, serving, until_read, worker_process
from support.workers.work import SHARD, record_of

from millstream import AsyncClient
from millstream.wire.messages.record import MARKER, read_log
from millstream.wire.state.heartbeat import models_of, read_workers
from millstream.wire.state.queue_info import read_queue

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_the_first_worker_with_a_digest_sets_the_queue_model(
    server: Server, redis_client: Redis, earlier: Build, tokenizer: Path, tmp_path: Path, client: AsyncClient
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "3").touch()
    model = model_name(tokenizer, gate=gate)
    job = await client.submit("w1", max_tokens=8, stream=True)

    async def model_of_queue() -> str:
        info = await read_queue(redis_client, "default")
        return info.model_digest if info else ""

    with earlier.worker(server, model) as old:
        await until_read(lambda: record_of(redis_client, job.id), lambda record: record.last_seq > 0)
        assert await model_of_queue() == ""
        async with serving(server, model):  # beside it
            await until_read(model_of_queue, lambda digest: digest != "")
            assert len(models_of(await read_workers(redis_client, SHARD))) == 1
            old.kill()
            old.wait(timeout=15)
            (gate / "3").unlink()
            result = await client.wait(job.id, timeout_s=30)
            assert (result.text, result.attempts) == (counted(2, 8), 2)  # it went on with the log
            digest = await model_of_queue()
            assert result.model_digest == digest
            log = await read_log(redis_client, SHARD, job.id)
            assert [one.body.decode() for one in log if one.kind == MARKER] == ["", digest]
            with worker_process(server, model_name(tokenizer, name="other")) as other:
                assert other.wait(timeout=30) == 1
    (gate / "3").touch()
    back = await client.submit("w10", max_tokens=8)
    async with serving(server, model, grace_s=0.1):  # begins it, and releases it
        await until_read(lambda: record_of(redis_client, back.id), lambda record: record.last_seq > 0)
    (gate / "3").unlink()
    with earlier.worker(server, model):
        result = await client.wait(back.id, timeout_s=30)
    assert (result.text, result.attempts, result.model_digest) == (counted(11, 8), 2, None)
