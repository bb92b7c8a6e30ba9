"""The runner of lines over a ledger in memory: what it asks of a ledger, and how much at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from millstream import AsyncClient, JobCancelled, NotFound, QueueFull, State, Submitted
from millstream.batch.rows.batch_lines import BatchLine
from millstream.batch.rows.line_ends import LineJobs
from millstream.batch.run.line_run import CHUNK_ROWS, MOST_READ, LineRun
from millstream.batch.run.row_ledger import Refusal, RowLedger
from millstream.batch.run.window import Window
from millstream.errors import InvalidRequest, JobError, MillstreamError
from millstream.openai.api_endpoint import ApiEndpoint


class MemoryLedger(RowLedger[AsyncClient, str | JobError, int]):
    """Its queue answers at once, if `ends` has nothing else for the line."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}  # by line
        self.submitted: Counter[int] = Counter()
        self.refusals: list[MillstreamError] = []  # of the next jobs
        self.ends: dict[int, list[str | JobError]] = {}  # by line, in their order
        self.read = self.most_read = 0  # answers in memory
        self.unmade: set[int] = set()  # lines whose rows cannot be made of an answer

    def client_of(self, queue: str) -> AsyncClient:
        return AsyncClient("redis://127.0.0.1:1", queue=queue)

    async def submit(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Any]:
        self.submitted.update(row.line for row in rows)
        found = [Submitted(f"0-{row.line}", State.QUEUED, True) for row in rows]
        return [self.refusals.pop() if self.refusals else one for one in found]

    def takes(self, row: BatchLine, taken: Sequence[object]) -> None:
        pass

    async def pause(self, client: AsyncClient, refusals: Sequence[Refusal]) -> None:
        await asyncio.sleep(0)

    async def refuse(self, row: BatchLine, refusal: MillstreamError) -> None:
        self.rows[row.line] = "refused"

    async def ended(
        self, client: AsyncClient, job_ids: Sequence[str]
    ) -> AsyncGenerator[tuple[str, str | JobError]]:
        for job_id in job_ids:
            ends = self.ends.get(int(job_id[2:]))
            yield job_id, ends.pop(0) if ends else "computed"

    def fails_line(self, end: str | JobError) -> bool:
        return isinstance(end, JobError)

    async def repeats(self, client: AsyncClient, line: LineJobs[str | JobError], *, again: bool) -> bool:
        return again and isinstance(line.ends[0], NotFound)

    async def end(self, client: AsyncClient, line: LineJobs[str | JobError]) -> int | None:
        [end] = line.ends
        self.rows[line.row.line] = end if isinstance(end, str) else "failed"
        return line.row.line if isinstance(end, str) else None

    async def answer_at(self, place: int) -> str:
        self.read += 1
        self.most_read = max(self.most_read, self.read)
        await asyncio.sleep(0)
        return self.rows[place]

    async def reuse(self, row: BatchLine, answer: str) -> bool:
        await asyncio.sleep(0)
        self.read -= 1
        if row.line in self.unmade:
            return False
        self.rows[row.line] = "reused"
        return True


async def lines(*keys: str) -> AsyncIterator[BatchLine]:
    """Lines 1, 2, …, equal where their keys are; those before a pause have ended when the next ones come."""
    number = 0
    for key in keys:
        if key == "pause":
            await asyncio.sleep(0.05)
            continue
        number += 1
        endpoint, own = ApiEndpoint.COMPLETIONS, key.encode() if key else None
        yield BatchLine(number, str(number), endpoint, "default", str(number), answer_key=own, size=1)


async def run(ledger: MemoryLedger, *keys: str, window: int = 1000) -> LineRun[Any, Any, Any]:
    made = LineRun(ledger, Window(window, 2**20))
    await asyncio.wait_for(made.run(lines(*keys)), 20)
    assert (made.under_way, made.followers, made.unsent) == (0, 0, 0)
    return made


async def test_few_answers_are_in_memory_for_equal_lines() -> None:
    ledger = MemoryLedger()
    first = ["a", *["x"] * (CHUNK_ROWS - 1)]  # one chunk, which is sent at once
    await run(ledger, *first, "pause", *["a"] * 600)
    assert ledger.most_read <= MOST_READ
    assert Counter(ledger.rows.values()) == {"computed": 2, "reused": 600 + CHUNK_ROWS - 2}


@pytest.mark.parametrize("failures", [1, 2, 9])
async def test_a_failure_is_shared_with_none(failures: int) -> None:
    """The next line leads, and after a second failure each line is computed."""
    ledger = MemoryLedger()
    ledger.ends = {line: [JobCancelled(f"0-{line}")] for line in range(1, failures + 1)}
    await run(ledger, *"aaaaaa")
    rows = {1: ["failed", "computed", *["reused"] * 4], 2: ["failed"] * 2 + ["computed"] * 4}
    assert ledger.rows == dict(enumerate(rows.get(failures, ["failed"] * 6), 1))
    assert ledger.submitted.total() == (2 if failures == 1 else 6)


async def test_a_row_that_cannot_be_made_of_an_answer_is_computed() -> None:
    ledger = MemoryLedger()
    ledger.unmade = {2, 4}
    await run(ledger, "a", "a", "a", "pause", "a", window=3)
    assert ledger.rows == {1: "computed", 2: "computed", 3: "reused", 4: "computed"}


async def test_a_lost_job_and_a_full_queue_are_met_again() -> None:
    ledger = MemoryLedger()
    ledger.refusals = [QueueFull("default", 1, 1, 0.0)] * 3
    ledger.ends = {2: [NotFound("0-2"), "computed"], 3: [NotFound("0-3")] * 9}
    await run(ledger, "", "", "", window=2)
    assert ledger.rows == {1: "computed", 2: "computed", 3: "failed"}
    assert ledger.submitted[3] >= 5


MIB = 1024**2


class LoadLedger(MemoryLedger):
    """Its lines are without images of up to two MiB until they are sent; these have one. Nothing ends before
    all lines are under way.
    """

    def __init__(self, window: GaugedWindow, lines: int) -> None:
        super().__init__()
        self.window, self.most = window, lines
        self.loads: Counter[int] = Counter()
        self.broken: set[int] = set()
        self.all_sent = asyncio.Event()

    async def load(self, row: BatchLine) -> BatchLine | MillstreamError:
        self.loads[row.line] += 1
        await asyncio.sleep(0)
        if row.line in self.broken:
            return InvalidRequest("messages", "a.png", "is broken")
        return replace(row, late_bytes=MIB, light=row)

    async def submit(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Any]:
        assert all(row.late_bytes == MIB for row in rows)
        await asyncio.sleep(0)
        return await super().submit(client, rows)

    def takes(self, row: BatchLine, taken: Sequence[object]) -> None:
        if self.submitted.keys() >= set(range(1, self.most + 1)) - self.broken:
            self.all_sent.set()

    async def ended(
        self, client: AsyncClient, job_ids: Sequence[str]
    ) -> AsyncGenerator[tuple[str, str | JobError]]:
        await self.all_sent.wait()
        async for one in super().ended(client, job_ids):
            yield one


class GaugedWindow(Window):
    peak = 0
    peak_of_all = 0

    def try_load(self, size: int) -> bool:
        taken = super().try_load(size)
        self.peak = max(self.peak, self._held)
        self.peak_of_all = max(self.peak_of_all, self.all)
        return taken

    @property
    def all(self) -> int:
        return self._held + self._away


async def pages(count: int, *texts: BatchLine) -> AsyncIterator[BatchLine]:
    """And a text behind each of the last pages."""
    behind = dict(zip(range(count, 0, -1), texts, strict=False))
    for number in range(1, count + 1):
        yield BatchLine(
            number, str(number), ApiEndpoint.CHAT, "default", str(number), size=100, late_bytes=2 * MIB
        )
        if number in behind:
            yield behind[number]


async def test_a_thousand_pages_are_under_way_in_little_memory() -> None:
    """Of a MiB each, of which 24 are held at most; some are refused, broken or lost meanwhile."""
    count, window = 1000, GaugedWindow(2000, 24 * MIB, 2000 * MIB)
    ledger = LoadLedger(window, count)
    ledger.refusals = [QueueFull("default", 1, 1, 0.0)] * 50
    ledger.broken = {7, 300, 301}
    ledger.ends = {5: [NotFound("0-5"), "computed"]}

    made = LineRun(ledger, window)
    await asyncio.wait_for(made.run(pages(count)), 60)
    assert (made.under_way, made.unsent, window.all) == (0, 0, 0)
    assert Counter(ledger.rows.values()) == {"computed": count - 3, "refused": 3}
    assert 16 * MIB < window.peak <= 24 * MIB
    assert ledger.loads.total() == count + 1  # a refused row keeps its image; a lost one is read again


async def test_lines_are_held_until_they_are_sent() -> None:
    """Those that can be read again: 300 of a MiB are under way at once, of which eight are held."""
    count, window = 300, GaugedWindow(2000, 8 * MIB, 2000 * MIB)
    ledger = LoadLedger(window, count)

    async def large() -> AsyncIterator[BatchLine]:
        for number in range(1, count + 1):
            line = BatchLine(number, str(number), ApiEndpoint.CHAT, "default", str(number), late_bytes=MIB)
            yield replace(line, late_bytes=0, size=MIB, light=line)

    ledger.submit = partial(MemoryLedger.submit, ledger)  # type: ignore[method-assign]
    ledger.ends = {5: [NotFound("0-5"), "computed"]}
    made = LineRun(ledger, window)
    await asyncio.wait_for(made.run(large()), 60)
    assert (made.under_way, made.unsent, window.all) == (0, 0, 0)
    assert ledger.rows == dict.fromkeys(range(1, count + 1), "computed")
    assert ledger.loads == {5: 1}


def texts(first: int, count: int, size: int) -> list[BatchLine]:
    made = []
    for number in range(first, first + count):
        line = BatchLine(number, str(number), ApiEndpoint.CHAT, "default", str(number), late_bytes=size)
        made.append(replace(line, late_bytes=0, size=size, light=line))
    return made


class SlowLedger(LoadLedger):
    """Its queue takes large texts, too, and answers slowly."""

    def __init__(self, window: GaugedWindow) -> None:
        super().__init__(window, 0)
        self.all_sent.set()

    async def submit(self, client: AsyncClient, rows: Sequence[BatchLine]) -> list[Any]:
        return await MemoryLedger.submit(self, client, rows)

    async def ended(
        self, client: AsyncClient, job_ids: Sequence[str]
    ) -> AsyncGenerator[tuple[str, str | JobError]]:
        async for one in super().ended(client, job_ids):
            for _ in range(20):
                await asyncio.sleep(0)
            yield one


async def test_messages_under_way_are_bounded_until_they_end() -> None:
    """Fewer than one chunk has: those that are under way make room for its rest, and so do lost ones, which
    wait for room again beside lines that enter.
    """
    window = GaugedWindow(2000, 8 * MIB, 12 * MIB)
    ledger = SlowLedger(window)
    ledger.broken = {9}
    ledger.refusals = [QueueFull("default", 1, 1, 0.0)] * 50
    ledger.ends = {line: [NotFound("0-1")] * 2 + ["computed"] for line in range(1, 600, 3)}
    made = LineRun(ledger, window)
    await asyncio.wait_for(made.run(pages(400, *texts(401, 200, MIB))), 60)
    assert (made.under_way, made.unsent, window.all) == (0, 0, 0)
    assert Counter(ledger.rows.values()) == {"computed": 599, "refused": 1}
    assert 10 * MIB < window.peak_of_all <= 12 * MIB


async def test_a_message_above_the_bound_goes_alone() -> None:
    window = GaugedWindow(2000, MIB, MIB)
    ledger = SlowLedger(window)
    made = LineRun(ledger, window)
    await asyncio.wait_for(made.run(pages(20, *texts(21, 10, 3 * MIB))), 20)
    assert ledger.rows == dict.fromkeys(range(1, 31), "computed")
    assert window.peak_of_all <= 5 * MIB  # a page of up to two beside a text of three
