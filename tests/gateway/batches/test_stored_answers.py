"""Equal lines whose answer is in the store, or was with another gateway. No further gateway runs beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from support.batches import Line, answered, files_of, finished, made, rows_counted
from support.equal_batch_lines import REFUSED, cached, lines_of, taken, text_of
from support.gateway import gateway, gateway_within
from support.servers.servers import Server
from support.workers.counting_worker import until
from support.workers.hand_worker import HandJob, HandWorker, hand_worker, register

from millstream import State
from millstream.gateway.batches.runner import batch_execution
from millstream.wire.versions import TAKEN


async def written_before(
    client: openai.AsyncOpenAI, worker: HandWorker, lines: list[Line]
) -> tuple[str, list[HandJob]]:
    """A batch of the lines "a", "x", "y", "a", of which two are under way at once: the first is in the store,
    and the last is not read yet."""
    batch = await made(client, lines)
    a, x = await taken(worker, "ax")
    await a.end(last="done")
    await until(lambda: rows_counted(client, batch.id, 1))
    return batch.id, [x, *await taken(worker, "y")]


@pytest.fixture
async def narrow(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[openai.AsyncOpenAI, HandWorker]]:
    """A gateway's client and a worker, where two lines are under way at once."""
    monkeypatch.setattr(batch_execution, "WINDOW_JOBS", 2)
    async with hand_worker(valkey.url) as worker:
        register(valkey.port, worker.keys)
        async with gateway_within(valkey.url, files_url=str(tmp_path)) as (host, port):
            url = f"http://{host}:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
                yield client, worker


async def test_an_answer_is_read_from_the_store(narrow: tuple[openai.AsyncOpenAI, HandWorker]) -> None:
    client, worker = narrow
    id, jobs = await written_before(client, worker, lines_of("axya"))
    for job in jobs:
        await job.end(last=text_of(job))
    done = await finished(client, id)
    output, _ = await files_of(client, done)
    assert answered(output) == {"r1": "done", "r2": "x", "r3": "y", "r4": "done"}
    assert cached(output) == {"r4"}
    assert done.to_dict()["usage"]["output_tokens"] == len("donexy")


@pytest.mark.parametrize("damage", ["gone", "unreadable"])
async def test_a_line_whose_answer_is_lost_is_computed(
    narrow: tuple[openai.AsyncOpenAI, HandWorker], tmp_path: Path, damage: str
) -> None:
    client, worker = narrow
    _, jobs = await written_before(client, worker, lines_of("axya"))
    [part] = [path for path in (tmp_path / "batches").rglob("*") if path.is_file()]
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(b"x" * part.stat().st_size)
    await jobs[0].end(last="x")
    await taken(worker, "a")


async def test_a_takeover_reuses_what_it_can_see(valkey: Server, tmp_path: Path) -> None:
    """Rows that are written stay; lines that waited wait again; formats and counts are those of the batch."""
    arguments = ("--files-url", tmp_path / "files", "--batch-lease-s", 0.3)
    asked = {"response_format": {"type": "json_object"}}
    lines = lines_of("aabbb", metadata={"expected": "done"})
    async with hand_worker(valkey.url) as worker:
        register(valkey.port, worker.keys, version_max=str(TAKEN.high))
        with gateway(valkey.url, *arguments) as first:
            await until(lambda: first.shows_ready(True))
            async with first.client() as client:
                batch = await made(client, lines, extra_body=asked)
                a, b = await taken(worker, "ab")
                await a.end(last="done", complete=True)
                await until(lambda: rows_counted(client, batch.id, 2))
            await asyncio.to_thread(first.close)
        with gateway(valkey.url, *arguments) as second:
            await until(lambda: second.shows_ready(True))
            async with second.client() as client:
                await b.end(State.FAILED, error=REFUSED)
                [again] = await taken(worker, "b")
                assert again.request.response_format is not None
                assert again.request.response_format.type == "json_object"
                await again.end(last="no", complete=True)
                done = await finished(client, batch.id)
                output, [error] = await files_of(client, done)
                assert answered(output) == {"r1": "done", "r2": "done", "r4": "no", "r5": "no"}
                assert (cached(output), error["custom_id"]) == ({"r2", "r5"}, "r3")
                told = done.to_dict()
                assert told["response_format"] == asked["response_format"]
                assert told["expected"] == {"total": 4, "agreed": 2}
                assert told["usage"]["output_tokens"] == len("doneno")
