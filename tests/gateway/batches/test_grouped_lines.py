"""Lines of a batch that begin alike are sent together."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

import openai
import pytest
from support.batches import answered, chat, files_of, finished, jsonl, made
from support.grouped_lines import chats_alike, number_of
from support.workers.hand_worker import HandWorker

from millstream.batch.rows.line_splitter import InputLine
from millstream.errors import Unavailable
from millstream.gateway.batches.records.batch_catalogue import WrittenLines
from millstream.gateway.batches.records.batch_record import BatchRecord, BatchStatus
from millstream.gateway.batches.records.line_set import LineSet
from millstream.gateway.batches.runner import batch_execution
from millstream.gateway.batches.runner.batch_execution import BatchExecution
from millstream.gateway.batches.runner.input_stream import lines_at
from millstream.gateway.batches.runner.line_reader import unwritten_rows
from millstream.gateway.redis.batch_calls import PartCounts


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


async def test_blank_lines_behind_a_line_are_not_split() -> None:
    data = b"one" + b"\n" * 2_000_000

    async def read(*_: Any) -> list[bytes]:
        return [data]

    tracemalloc.start()
    try:
        assert [line.data async for line in lines_at([(1, 0, len(data))], read)] == [b"one"]
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


async def test_written_lines_of_any_stride_are_passed_in_turns() -> None:
    async def stride() -> AsyncIterator[InputLine]:
        for number in range(1, 8_000, 8):
            yield InputLine(number, b"")

    async def read() -> list[Any]:
        return [row async for row in unwritten_rows(stride(), none, parts)]

    none: Any = None
    parts: Any = SimpleNamespace(written=range(8_000))
    reading, turns = asyncio.ensure_future(read()), 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 100
    assert reading.result() == []


async def test_a_batch_whose_order_is_sought_does_not_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lose its place, and begin to seek again."""
    stalls: list[float] = []

    async def find_order(*_: Any) -> NoReturn:
        stalls.append(execution.stalled_s)
        raise Unavailable("no more is wanted")

    async def told(*_: Any) -> Any:
        return WrittenLines(LineSet(), (), {})

    async def parts(*_: Any) -> list[Any]:
        return []

    async def record(*_: Any) -> Any:
        return SimpleNamespace(bytes=9)

    async def beside() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(batch_execution, "find_order", find_order)
    batch = BatchRecord(
        "batch_1",
        "",
        BatchStatus.IN_PROGRESS,
        "e",
        "f",
        "1h",
        created_s=1,
        expires_s=2,
        times={},
        counts=PartCounts(),
    )
    gateway: Any = MagicMock(files=SimpleNamespace(find=record))
    catalogue: Any = SimpleNamespace(parts=parts, written_lines=told)
    lease: Any = SimpleNamespace(renew=beside, interruption=beside, live_tokens=0)
    execution = BatchExecution(gateway, catalogue, batch, lease)
    with pytest.raises(Unavailable, match="no more is wanted"):
        await execution.run()
    assert stalls == [0.0]


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
    done = await finished(client, batch.id)
    told = done.to_dict()
    assert (told["groups"], told["shared_tokens"]) == (3, 5 * 256)
    assert "in_order" not in told
    output, errors = await files_of(client, done)
    assert errors == []
    assert answered(output) == {f"r{number}": str(number) for number in range(9)}


async def test_a_batch_may_be_sent_in_the_order_of_its_file(
    worker: HandWorker, client: openai.AsyncOpenAI
) -> None:
    batch = await made(client, chats_alike(6), extra_body={"in_order": True})
    assert batch.to_dict()["in_order"] is True
    taken: list[int] = []
    for _ in range(6):
        job = await worker.take()
        taken.append(number_of(job))
        await job.end(last="done")
    assert taken == list(range(6))
    told = (await finished(client, batch.id)).to_dict()
    assert told["in_order"] is True
    assert not told.keys() & {"groups", "shared_tokens"}


async def test_an_order_that_is_no_boolean_is_named(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await made(client, chats_alike(1), extra_body={"in_order": "false"})
    assert refused.value.param == "in_order"
