"""Workers and clients of this build and of a later one on the same queue, while one replaces the other: real
processes, real signals. Every answer is counted, so that a lost, repeated or foreign token shows."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.versions.next_version import NEXT, Build, Refused
from support.workers.counting_worker import (
    assert_nothing_left,
    counted,
    model_name,
    serving,
    until,
    worker_process,
)

from millstream import AsyncClient, Result
from millstream.client.streaming.events import Transcript
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.record import read_job
from millstream.wire.messages.script_replies import JobRecord
from millstream.wire.state.heartbeat import read_workers
from millstream.wire.state.queue_info import read_queue
from millstream.wire.versions import TAKEN, Versions

pytestmark = pytest.mark.slow

SHARD = QueueKeys("default").shard(0)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """While it has the file `5`, no row draws its sixth token."""
    folder = tmp_path / "gate"
    folder.mkdir()
    (folder / "5").touch()
    return folder


async def record_of(client: redis.asyncio.Redis, job_id: str) -> JobRecord:
    record = await read_job(client, SHARD, job_id)
    assert record is not None
    return record


async def alive(client: redis.asyncio.Redis, name: str, versions: Versions) -> None:
    async def beats() -> bool:
        return any(
            one.name.startswith(f"{name}-") and one.versions == versions
            for one in await read_workers(client, SHARD)
        )

    await until(beats)


async def held(client: redis.asyncio.Redis, job_id: str, owner: str, tokens: int = 0) -> None:
    """Until a worker of that name runs the job, and has written so many entries of its log."""

    async def runs() -> bool:
        record = await record_of(client, job_id)
        return record.owner.startswith(f"{owner}-") and record.last_seq >= tokens

    await until(runs)


async def begin(client: AsyncClient, direct: redis.asyncio.Redis, *workers: str) -> dict[str, int]:
    """Submit jobs, each with its first number, until each of the workers has begun one."""
    begun: dict[str, int] = {}
    idle = set(workers)
    while idle:
        number = 10 * (len(begun) + 1)
        job = await client.submit(f"w{number}", max_tokens=20, stream=True)
        begun[job.id] = number

        async def runs(job_id: str = job.id) -> bool:
            return (await record_of(direct, job_id)).last_seq > 0

        await until(runs)
        idle.discard((await record_of(direct, job.id)).owner.rpartition("-")[0])
    return begun


async def told(client: AsyncClient, job_id: str) -> str:
    transcript = Transcript()
    async for event in client.stream(job_id):
        transcript.add(event)
    return transcript.text()


def text_of(result: Result) -> str:
    return result.choices[0].text


async def test_a_later_version_replaces_this_one(
    server: Server,
    redis_client: redis.asyncio.Redis,
    earlier: Build,
    later: Build,
    tokenizer: Path,
    gate: Path,
) -> None:
    """One old worker is drained, one killed; what they had begun the new one continues. Three builds, each
    with its own scripts."""
    model = model_name(tokenizer, gate=gate, rows=24)
    async with AsyncClient(server.url) as client, later.client(server) as foreign:
        with (
            earlier.worker(server, model, name="drained", grace_s=0.1) as drained,
            worker_process(server, model, name="killed") as killed,
        ):
            await alive(redis_client, "drained", TAKEN)
            await alive(redis_client, "killed", TAKEN)
            refusal = rf"QueueMismatch: .*no living worker takes message version {NEXT}, .*they take {TAKEN}:"
            with pytest.raises(Refused, match=refusal):
                await foreign.submit("w1", max_tokens=4)
            begun = await begin(client, redis_client, "drained", "killed")
            streams = {job_id: asyncio.create_task(told(client, job_id)) for job_id in begun}
            with later.worker(server, model_name(tokenizer), name="new"):
                await alive(redis_client, "new", Versions(1, NEXT))
                mixed = {}
                for n in range(500, 580, 10):
                    submit = foreign.submit(f"w{n}", max_tokens=6, stream=n % 20 == 0)
                    mixed[await submit] = n
                    mixed[(await client.submit(f"w{n + 5}", max_tokens=6)).id] = n + 5
                newer = [job_id for job_id, n in mixed.items() if n % 10 == 0]
                drained.send_signal(signal.SIGTERM)
                os.kill(killed.pid, signal.SIGKILL)
                for job_id, n in mixed.items():
                    assert await told(client, job_id) == counted(n + 1, 6)
                    assert text_of(await client.wait(job_id, timeout_s=30)) == counted(n + 1, 6)
                    assert await foreign.wait(job_id) == counted(n + 1, 6)
                for job_id, n in begun.items():
                    assert await streams[job_id] == counted(n + 1, 20)
                    result = await client.wait(job_id, timeout_s=30)
                    assert (text_of(result), result.attempts) == (counted(n + 1, 20), 2)
                    assert await foreign.stream(job_id) == counted(n + 1, 20)
                assert await asyncio.to_thread(drained.wait, 30) == 0
                for job_id in newer:
                    record = await record_of(redis_client, job_id)
                    assert record.owner.startswith("new-")
                    assert (record.version, record.attempt, record.died) == (NEXT, 1, 0)
    await assert_nothing_left(redis_client)


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
async def test_this_version_comes_back_for_a_while(
    server: Server, redis_client: redis.asyncio.Redis, later: Build, tokenizer: Path, gate: Path
) -> None:
    """A rollback: old workers go on with what both understand, and start nothing else."""
    async with AsyncClient(server.url) as client, later.client(server) as foreign:
        with later.worker(server, model_name(tokenizer, gate=gate), name="new") as new:
            await alive(redis_client, "new", Versions(1, NEXT))
            plain = (await client.submit("w10", max_tokens=20, stream=True)).id
            begun = await foreign.submit("w20", max_tokens=20, stream=True)
            for job_id in (plain, begun):
                await held(redis_client, job_id, "new", tokens=1)
            stream = asyncio.create_task(told(client, plain))
            os.kill(new.pid, signal.SIGKILL)
            waiting = await foreign.submit("w30", max_tokens=20)
        async with serving(server, model_name(tokenizer), name="old") as old:
            assert await stream == counted(11, 20)
            result = await client.wait(plain, timeout_s=30)
            assert (text_of(result), result.attempts) == (counted(11, 20), 2)
            assert await foreign.wait(plain) == counted(11, 20)
            await until(lambda: old.metric("jobs_of_other_versions") == 2)
            more = await client.submit("w40", max_tokens=3)
            assert text_of(await client.wait(more.id, timeout_s=30)) == counted(41, 3)
            left = [await record_of(redis_client, job_id) for job_id in (begun, waiting)]
            found = [(one.state, one.attempt, one.died) for one in left]
            assert found == [("queued", 1, 1), ("queued", 0, 0)]
            with later.worker(server, model_name(tokenizer), name="again"):
                assert await foreign.stream(begun) == counted(21, 20)
                assert text_of(await client.wait(begun, timeout_s=30)) == counted(21, 20)
                assert await foreign.wait(waiting) == counted(31, 20)
            await until(lambda: old.metric("jobs_of_other_versions") == 0)
        info = await read_queue(redis_client, "default")
        assert info is not None
        assert info.versions == Versions(1, NEXT)
    await assert_nothing_left(redis_client)
