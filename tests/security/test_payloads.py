"""What people send is theirs: no prompt, answer, metadata, stop string, tenant or token id in any line that a
program writes, nor in metrics or heartbeats. Marked words are sent along every way, and looked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from support.commands import environment
from support.http import fetch
from support.servers.servers import Server, free_port
from support.workers.counting_worker import model_name, settings, until_read
from support.workers.work import SHARD, raw_submission

from millstream import AsyncClient, NotReady
from millstream.wire import calls
from millstream.wire.messages import codec

MARK = "zqmark"
MARKED_ID = 918273645  # of a token: no model here has it
PASSWORD = "zqpassword"
REQUEST: dict[str, Any] = {
    "tenant": f"{MARK}-tenant",
    "metadata": {f"{MARK}-key": f"{MARK}-value"},
    "stop": [f"{MARK}-stop"],
    "traceparent": f"{MARK}-trace",
}


def messages() -> list[dict[str, Any]]:
    """Requests that only a worker can refuse."""
    return [
        {"prompt": f"w1 {MARK}", "metadata": {f"{MARK}-key" * 100: "x"}},
        {"prompt": f"w1 {MARK}", "metadata": {"x": [f"{MARK}-value"]}},
        {"prompt": f"w1 {MARK}", "sampling": {"temperature": f"{MARK}"}},
        {"prompt": f"w1 {MARK}", "sampling": {"logit_bias": {f"{MARK}": 1}}},
        {"prompt": f"w1 {MARK}", "lane": f"{MARK}"},
        {"prompt": f"w1 {MARK}", "tenant": f"{MARK}" * 1000},
        {"messages": [{"role": f"{MARK}" * 100, "content": f"{MARK}"}]},
        {"prompt": f"{MARK}", "token_ids": [MARKED_ID]},
        {f"{MARK}": f"{MARK}"},
    ]


async def submit_all(client: AsyncClient, redis_client: redis.asyncio.Redis) -> list[str]:
    """Good, bad, failing, poisonous and unreadable jobs, and what is no job at all."""
    good = [
        {"prompt": f"w1 {MARK}"},
        {"prompt": f"w1 {MARK}", "stream": True, "n": 2, "logprobs": True},
        {"prompt": f"w660 {MARK} w664"},  # kills its engine
        {"prompt": f"w1 {MARK} w775"},  # its logits are no numbers
        {"prompt": f"w13 {MARK}"},  # refused by the engine
        {"prompt": f"{MARK} " * 500},  # too long
        {"messages": [{"role": "user", "content": MARK}]},  # no chat template
        {"token_ids": [1, MARKED_ID]},
        {"prompt": MARK, "logit_bias": {MARKED_ID: 1.0}},
        {"prompt": MARK, "stop_token_ids": [MARKED_ID]},
        {"prompt": MARK, "deadline_s": 0.01},
    ]
    ids = [(await client.submit(**REQUEST | {"max_tokens": 5} | fields)).id for fields in good]
    cancelled = await client.submit(f"w1 {MARK}", max_tokens=400, **REQUEST)
    await client.cancel(cancelled.id)
    bodies = [codec.pack(fields) for fields in messages()]
    for number, body in enumerate([*bodies, MARK.encode(), b"\x81\xa1" + MARK.encode(), b"\xff"]):
        job_id = f"0-raw-{number}"
        await calls.run(redis_client, raw_submission(job_id, body))
        ids.append(job_id)
    for garbage in (
        {MARK: MARK},
        {"id": f"\n{MARK}", "v": "1", "b": MARK},
        {"id": "0-x", "v": MARK, "b": MARK},
    ):
        await redis_client.xadd(SHARD.lane("batch"), garbage)
    return [*ids, cancelled.id]


async def publish_garbage(redis_client: redis.asyncio.Redis, job_id: str) -> None:
    await redis_client.publish(SHARD.control, f"cancel {MARK}")
    await redis_client.publish(SHARD.control, MARK)
    await redis_client.publish(SHARD.events(job_id), f"9-9 d {MARK}")


@pytest.fixture
async def locked(valkey: Server) -> AsyncIterator[Server]:
    """The server asks for a password."""
    async with redis.asyncio.Redis.from_url(valkey.url) as admin:
        await admin.config_set("requirepass", PASSWORD)
    yield valkey
    async with redis.asyncio.Redis.from_url(valkey.url, password=PASSWORD) as admin:
        await admin.config_set("requirepass", "")


async def run_worker(
    server: Server, tokenizer: Path, folder: Path, redis_client: redis.asyncio.Redis, **changes: Any
) -> tuple[str, str, str]:
    """What a worker's process wrote at log level debug, its metrics, and its heartbeat."""
    url = server.url.replace("redis://", f"redis://:{PASSWORD}@")
    port = free_port()
    model = model_name(tokenizer, poison=666, nan=776, refuse=13, context=256)
    chosen = settings(
        server, model, redis_url=url, log_level="debug", log_format="json", engine_restarts=50,
        metrics_port=port, max_died=1, **changes,
    )  # fmt: skip
    given = {f"MILLSTREAM_{name.upper()}": getattr(chosen, name) for name in chosen.model_fields_set}
    with (folder / "log").open("wb") as log:  # a pipe nobody reads would hold it up
        process = subprocess.Popen(  # noqa: ASYNC220 - its output goes to a file
            [sys.executable, "-m", "millstream_worker"],
            stdout=log, stderr=log, env=environment(**given), start_new_session=True,
        )  # fmt: skip
    try:
        async with AsyncClient(url) as client:
            ids = await submit_all(client, redis_client)
            await publish_garbage(redis_client, ids[0])
            for outcome in (await client.wait_many(ids, timeout_s=60)).values():
                assert not isinstance(outcome, NotReady)

            await until_read(lambda: redis_client.xlen(SHARD.dead), lambda count: count >= 4)
            beats = [await redis_client.hgetall(key) async for key in redis_client.scan_iter("*worker*")]
        _, page = await asyncio.to_thread(fetch, port)
        process.terminate()
        assert await asyncio.to_thread(process.wait, timeout=60) == 0
        return (folder / "log").read_text(), page, str(beats)
    finally:
        process.kill()
        process.wait(timeout=15)


@pytest.fixture
async def admin(locked: Server) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(locked.url, password=PASSWORD) as client:
        yield client


@pytest.mark.slow
async def test_a_worker_writes_nothing_of_what_it_was_sent(
    locked: Server, tokenizer: Path, tmp_path: Path, admin: redis.asyncio.Redis
) -> None:
    log, page, beats = await run_worker(locked, tokenizer, tmp_path, admin)
    for text in (log, page, beats):
        for marked in (MARK, str(MARKED_ID), PASSWORD, "w2 w3"):
            assert [line for line in text.splitlines() if marked in line] == []
    assert "job started" in log
    assert "job ended" in log
    assert "entry is not a job" in log
    assert "engine died" in log
    assert "model_error" in log
    assert "millstream_requests_total" in page
    assert "token_capacity" in beats


@pytest.mark.slow
async def test_where_it_is_asked_for_requests_and_answers_are_written(
    locked: Server, tokenizer: Path, tmp_path: Path, admin: redis.asyncio.Redis
) -> None:
    log, page, _ = await run_worker(locked, tokenizer, tmp_path, admin, log_payloads=True)
    for marked in (f"w1 {MARK}", f"{MARK}-tenant", f"{MARK}-value", f"{MARK}-stop", str(MARKED_ID), "w1 w2"):
        assert marked in log
    assert PASSWORD not in log
    assert MARK not in page
