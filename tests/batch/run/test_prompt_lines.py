"""Lines with lists of prompts: a job for each, one row, and no job that nobody finds again."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest
from support.batch_files import BatchFiles
from support.workers.answering_worker import answering, completion, read_rows
from support.workers.counting_worker import until

from millstream import AsyncClient, ErrorInfo, PromptTokens, Result
from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.files.runfile import line_digest_of
from millstream.batch.input_check import InputCheck
from millstream.batch.line_counts import LineCounts
from millstream.batch.rows.batch_lines import read_row
from millstream.batch.rows.faults import LineFault
from millstream.batch.rows.line_rules import LineRules
from millstream.batch.rows.line_splitter import InputLine
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run_cancellation import Cancelled, cancel_jobs
from millstream.errors import JobFailed
from millstream.wire.keys import Lane

LINES = [completion("a", ["one", "two", "three"], n=1), completion("b", [[1, 2]]), completion("c", "text")]


def texts(place: BatchFiles) -> dict[str, list[tuple[int, str]]]:
    """The choices of each row."""
    bodies = {row["custom_id"]: row["response"]["body"] for row in read_rows(place.out)}
    return {own: [(one["index"], one["text"]) for one in body["choices"]] for own, body in bodies.items()}


ANSWERS = {"a": [(0, "ONE"), (1, "TWO"), (2, "THREE")], "b": [(0, "(1, 2)")], "c": [(0, "TEXT")]}


async def test_a_list_is_one_row_with_all_choices(place: BatchFiles) -> None:
    """And equal lists are computed once."""
    pairs = {"d": ["one", "two"], "e": ["one", "two"], "f": ["two", "one"]}
    place.write(*LINES, *(completion(own, pair, temperature=0) for own, pair in pairs.items()))
    with answering(place.server.url) as worker:
        summary = await place.run()
        assert worker.computed_once() == 9
    one_two = {own: [(0, "ONE"), (1, "TWO")] for own in "de"}
    assert texts(place) == ANSWERS | one_two | {"f": [(0, "TWO"), (1, "ONE")]}
    assert (summary.completed, summary.failed, summary.reused, summary.work.rows) == (6, 0, 1, 5)
    usage = next(row["response"]["body"]["usage"] for row in read_rows(place.out) if row["custom_id"] == "a")
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, len("ONETWOTHREE"))
    assert not place.states()


def test_a_line_of_prompts_has_the_size_of_its_requests() -> None:
    rules, metadata = LineRules(), {"note": "x" * 500}
    line = InputLine(1, b"its text")
    row = rules.row_of(line, "a", completion("a", ["one"] * 100, metadata=metadata))
    assert row.size > 100 * 500
    assert rules.row_of(line, "a", completion("a", "one", metadata=metadata)).size == len(b"its text")
    many = completion("a", ["one"] * 256, prediction="x" * 80_000)
    with pytest.raises(
        LineFault, match=r"^body\.prompt: all, each with the other fields, may take"
    ) as caught:
        rules.row_of(line, "a", many)
    assert caught.value.field == "body.prompt"


async def test_the_failure_of_a_prompt_is_that_of_its_line(place: BatchFiles) -> None:
    """The others are cancelled: they wait behind it."""
    place.write(completion("a", ["one", "please fail", *(f"text {i}" for i in range(9))]), LINES[2])
    with answering(place.server.url) as worker:
        summary = await place.run()
        assert (summary.completed, summary.failed) == (1, 1)
        assert [cause.text for cause in summary.causes] == ["body.prompt[1]: it said fail"]
        assert place.faults() == [(1, "model_refused", "body.prompt[1]")]
        assert texts(place) == {"c": ANSWERS["c"]}
        before = worker.computed_once()
        await place.run(RunOptions(retry_failed=True))  # as new jobs
        assert worker.computed_once() > before


async def test_a_resumed_run_finds_all_jobs_of_a_list(place: BatchFiles) -> None:
    place.write(*LINES)
    with answering(place.server.url) as worker:
        worker.after = 2  # the first line is answered in part
        running = asyncio.create_task(place.run())
        await until(lambda: worker.full_stop.is_set())
        running.cancel()
        await asyncio.wait([running])
        assert texts(place) == {}
        worker.gate.set()
        assert (await place.run()).completed == 3
        assert worker.computed_once() == 5
    assert texts(place) == ANSWERS


async def test_all_jobs_of_a_list_are_cancelled_and_redone(place: BatchFiles) -> None:
    place.write(LINES[0])
    row = read_row(1, "a", LINES[0], lane=Lane.BATCH, tenant="")
    with Journal(place.out) as journal:
        listed = journal.notes.own_id(row.digest, row.prompts)
        assert line_digest_of(listed) == row.digest
    running = asyncio.create_task(place.run())
    await until(lambda: place.queued() == 3)
    running.cancel()
    await asyncio.wait([running])
    async with AsyncClient(place.server.url) as client:
        with Journal(place.out) as journal:
            assert list(journal.notes.under_way) == [listed]
            assert await cancel_jobs(client, journal, journal.notes.under_way) == Cancelled(cancelled=3)
            assert not journal.notes.under_way
    with answering(place.server.url) as worker:
        assert (await place.run()).completed == 1
        assert worker.computed_once() == 3
        assert all(job_id.partition(".")[2].endswith(f".1-{i}") for i, job_id in enumerate(worker.answered))


class Counting(AsyncClient):
    """Its workers count a token for each character, and hold 100."""

    def with_queue(self, _: str) -> Self:
        return self

    async def count(self, *_: Any, **__: Any) -> PromptTokens:
        return PromptTokens(1)

    async def count_many(self, requests: Any, timeout_s: float | None = None) -> Any:
        return [self._one(one["request"].prompt) for one in requests]

    def _one(self, prompt: str) -> PromptTokens | JobFailed:
        if len(prompt) <= 100:
            return PromptTokens(len(prompt))
        error = ErrorInfo(code="bad_request", message="prompt: too long", field="prompt")
        return JobFailed("0-a", error.code, error.message, Result(error=error))


@pytest.mark.parametrize(("prompts", "bad"), [(["one", "two"], 0), (["one", "x" * 200], 1)])
async def test_a_check_counts_all_prompts(place: BatchFiles, prompts: list[str], bad: int) -> None:
    place.write(completion("a", prompts))
    found = InputCheck(options := RunOptions())
    with InputFile(place.source) as source:
        found.take(source, "IN")
    counts = LineCounts(Counting(place.server.url), found, options)
    await counts.take(place.source)
    assert (found.bad, counts.tokens, found.findings.output_tokens) == ((1, 0, 0) if bad else (0, 6, 32))
    assert [one.field for one in found.shown] == ["body.prompt[1]"] * bad
