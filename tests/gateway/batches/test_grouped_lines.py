"""Lines of a batch that begin alike are sent together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import openai
from support.batches import answered, chat, files_of, finished, jsonl, made
from support.grouped_lines import chats_alike, number_of
from support.workers.hand_worker import HandWorker

from millstream.gateway.batches.runner.input_stream import lines_at


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
    first, *others = chats_alike(8)
    lines = [b"\xef\xbb\xbf" + jsonl([first]), *others[:3], b"\n \n", *others[3:]]
    batch = await made(client, [*lines, chat(8, "short 8", 5)])
    taken: list[int] = []
    for _ in range(9):
        job = await worker.take()
        taken.append(number_of(job))
        await job.end(last=str(taken[-1]))
    assert taken == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    output, errors = await files_of(client, await finished(client, batch.id))
    assert errors == []
    assert answered(output) == {f"r{number}": str(number) for number in range(9)}
