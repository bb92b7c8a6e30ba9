"""Readers that do not read, or are too many: nobody waits for them, and they lose nothing."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path

import pytest
import redis.asyncio
from support.servers.servers import Server
from support.wire.flood import submit_all
from support.workers.answering_worker import answering
from support.workers.counting_worker import counted, until, until_read
from support.workers.work import Work

from millstream import AsyncClient, ClientOptions, JobFields, Result
from millstream.client.jobs import follow_stream, wait_jobs
from millstream.client.jobs.wait_jobs import READ_BYTES
from millstream.client.session.job_reader import QueueJobs
from millstream.client.session.session import Session
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.script_replies import JobRecord

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

SHARD = QueueKeys("default").shard(0)
MIB = 2**20
# 16 choices with log-probabilities: about 700 KB of messages
LOUD: JobFields = {
    "prompt": "w1", "n": 16, "max_tokens": 400, "logprobs": True, "top_logprobs": 2, "stream": True,
}  # fmt: skip

READING = """
import asyncio, sys
from millstream import AsyncClient, ClientOptions

async def read(client, job_id):
    texts = []
    async for event in client.stream(job_id):
        if not texts:
            print("begun", flush=True)
        texts.append(event.text)
    return "".join(texts)

async def main():
    options = ClientOptions(name="reading")
    async with AsyncClient(sys.argv[1], options=options) as client:
        texts = await asyncio.gather(*(read(client, job_id) for job_id in sys.argv[2:]))
    print(*sorted(set(texts)), sep="|", flush=True)

asyncio.run(main())
"""


async def test_a_reader_that_was_cut_off_goes_on_from_the_log(tokenizer: Path, tmp_path: Path) -> None:
    """A real process, stopped in the middle of its streams until the server has hung up on it."""
    with Server("valkey") as server:
        work = Work(server, tokenizer, tmp_path)
        work.hold(2)
        async with (
            redis.asyncio.Redis.from_url(server.url) as direct,
            AsyncClient(server.url) as client,
            work(rows=512, lookahead=64),
        ):
            await direct.config_set("client-output-buffer-limit", "pubsub 1mb 512kb 1")
            ids = await submit_all(client, [LOUD] * 32)  # far more than the sockets of both ends take
            command = [sys.executable, "-c", READING, server.url, *ids]
            reader = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
            assert reader.stdout is not None
            for _ in ids:
                assert await reader.stdout.readline() == b"begun\n"
            reader.send_signal(signal.SIGSTOP)
            work.go(2)

            async def cut_off() -> bool:
                rows = await direct.client_list()
                return not [row for row in rows if row["name"].startswith("reading") and int(row["sub"])]

            assert not await cut_off()
            await until(cut_off, 60)
            outcomes = await client.wait_many(ids, timeout_s=60)
            reader.send_signal(signal.SIGCONT)
            output, _ = await reader.communicate()
    assert all(isinstance(outcome, Result) for outcome in outcomes.values()), "nobody waits for a reader"
    assert output.decode().strip() == counted(2, 400)


async def test_ten_thousand_waiting_streams_hardly_ask(valkey: Server) -> None:
    """No worker serves the queue. Without a common bound all of them would ask within a second or two."""
    window_s, jobs = 3.0, 10_000
    options = ClientOptions(timeout_s=60.0)
    async with (
        AsyncClient(valkey.url, options=options) as client,
        redis.asyncio.Redis.from_url(valkey.url) as direct,
    ):
        ids = await submit_all(client, ({"prompt": "w1"} for _ in range(jobs)))
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(_read(client, job_id)) for job_id in ids]

            await until_read(lambda: _log_reads(direct), lambda count: count >= jobs, 200)
            await direct.config_resetstat()
            await asyncio.sleep(window_s)
            reads = await _log_reads(direct)
            for reader in readers:
                reader.cancel()
    assert reads < 2 * window_s * follow_stream.POLLS_PER_S


async def _read(client: AsyncClient, job_id: str) -> None:
    async for _ in client.stream(job_id):
        raise AssertionError("nobody computes these")


async def _log_reads(direct: redis.asyncio.Redis) -> int:
    stats = await direct.info("commandstats")
    return int(stats.get("cmdstat_xrange", {}).get("calls", 0))


class NotedReads(QueueJobs):
    """`batches` has the bytes of the results that were read together."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, "default")
        self.batches: list[int] = []

    async def read(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        records = await super().read(job_ids)
        self.batches.append(sum(len(record.result or b"") for record in records if record))
        return records


async def test_many_large_results_are_read_a_few_at_a_time(valkey: Server) -> None:
    with answering(valkey.url, answer=lambda request: "x" * MIB):
        async with AsyncClient(valkey.url) as client:
            ids = await submit_all(client, ({"prompt": "w1"} for _ in range(24)))
            await client.wait_many(ids, timeout_s=60)
    session = Session(valkey.url, ClientOptions())
    jobs = NotedReads(session)
    outcomes = [pair async for pair in wait_jobs.as_completed(jobs, ids, 60)]  # all are read at once
    await session.aclose()
    assert len(outcomes) == 24
    assert sum(jobs.batches) > 24 * MIB
    assert READ_BYTES // 2 < max(jobs.batches) <= READ_BYTES
