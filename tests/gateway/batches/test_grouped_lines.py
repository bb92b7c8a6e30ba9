"""Lines of a batch that begin alike are sent together, also by a gateway that takes the batch over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import openai
from support.batches import Line, answered, chat, files_of, finished, jsonl, made
from support.equal_batch_lines import text_of
from support.gateway import gateway
from support.servers.servers import Server
from support.workers.counting_worker import until_read
from support.workers.hand_worker import HandWorker, hand_worker

from millstream.gateway.batches.runner.input_stream import lines_at
from millstream.gateway.redis.tenant_keys import TenantKeys

DOCUMENTS = [f"document {name} " * 100 for name in "abc"]  # more than 1 KiB


def lines_of(count: int) -> list[Line]:
    return [chat(number, f"{DOCUMENTS[number % 3]} {number}", 5) for number in range(count)]


def number_of(text: str) -> int:
    return int(text.rpartition(" ")[2])


async def test_many_lines_are_read_from_their_places() -> None:
    """In any order, and no more of them at once than fit."""
    data = b"".join(b"%d%s\n\n" % (number, b"x" * 400_000 * (number < 100)) for number in range(200))
    places = [0]
    while (end := data.index(b"\n\n", places[-1]) + 2) < len(data):
        places.append(end)
    spans = [(2 * i + 1, *both) for i, both in enumerate(pairwise([*places, len(data)]))]
    random.Random(7).shuffle(spans)
    asked: list[int] = []

    async def read(starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        pieces = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        asked.append(sum(map(len, pieces)))
        return pieces

    lines = [line async for line in lines_at(spans, read)]
    assert [(line.number, line.place) for line in lines] == [span[:2] for span in spans]
    assert all((line.data or b"").rstrip(b"x") == b"%d" % (line.number // 2) for line in lines)
    assert max(asked) <= 8 * 2**20
    assert len(asked) < 20


async def test_groups_are_sent_whatever_the_order_of_the_file(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    first, *others = lines_of(8)
    lines = [b"\xef\xbb\xbf" + jsonl([first]), *others[:3], b"\n \n", *others[3:]]
    batch = await made(client, [*lines, chat(8, "short", 5)])
    taken: list[int] = []
    for _ in range(9):
        job = await worker.take()
        taken.append(8 if text_of(job) == "short" else number_of(text_of(job)))
        await job.end(last=str(taken[-1]))
    assert taken == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    output, errors = await files_of(client, await finished(client, batch.id))
    assert errors == []
    assert answered(output) == {f"r{number}": str(number) for number in range(9)}


async def test_a_batch_of_groups_is_taken_over(valkey: Server, tmp_path: Path) -> None:
    """Rows that are written are not read again."""
    arguments = ("--files-url", tmp_path / "files", "--batch-lease-s", 0.6)
    async with hand_worker(valkey.url) as worker:
        with gateway(valkey.url, *arguments) as killed:
            async with killed.client() as client:
                batch = await made(client, lines_of(9))
            for _ in range(2):
                job = await worker.take()
                await job.end(last=str(number_of(text_of(job))))
            key = TenantKeys("").batch(batch.id)
            await until_read(lambda: worker.redis.hget(key, "completed"), lambda rows: rows == b"2")
        with gateway(valkey.url, *arguments) as door:
            for _ in range(7):
                job = await worker.take()
                await job.end(last=str(number_of(text_of(job))))
            async with door.client() as client:
                output, errors = await files_of(client, await finished(client, batch.id))
    assert errors == []
    assert answered(output) == {f"r{number}": str(number) for number in range(9)}
