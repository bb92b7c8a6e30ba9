"""Equal lines whose answers are not sampled are computed once, and each has its own row."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from support.batch_files import BatchFiles
from support.commands import invoke
from support.workers.answering_worker import CUT, answering, completion, read_rows, shout
from support.workers.counting_worker import until

from millstream import AsyncClient, Request
from millstream.batch.files.journal import Journal, WriteFailed
from millstream.batch.run.run_options import RunOptions
from millstream.wire.messages.job_messages import ErrorInfo

APART = RunOptions(reuse=False)


def equal(lines: int, prompt: str = "hello", **body: Any) -> list[dict[str, Any]]:
    return [completion(f"{prompt}-{i}", prompt, temperature=0, **body) for i in range(lines)]


async def test_equal_lines_are_one_job_with_a_row_for_each(place: BatchFiles) -> None:
    lines = equal(3)
    lines[0]["body"]["metadata"] = {"expected": "hello", "page": "1"}
    lines[2]["body"]["metadata"] = {"expected": "no"}
    place.write(*lines, *equal(2, "other"), completion("s-1"), completion("s-2"))
    with answering(place.server.url) as worker:
        summary = await place.run()
    assert worker.computed_once() == 4
    first, second, third = (row["response"] for row in read_rows(place.out) if "hello" in row["custom_id"])
    assert first["body"]["usage"]["completion_tokens"] == 5
    assert [first["body"].get("cached"), first["body"]["metadata"]["page"]] == [None, "1"]
    assert [second["body"].get("metadata"), third["body"]["metadata"]] == [None, {"expected": "no"}]
    for again in (second, third):
        assert again["request_id"] == first["request_id"]
        assert again["body"]["cached"] is True
        assert again["body"]["choices"] == first["body"]["choices"]
        assert again["body"]["usage"] == {
            "prompt_tokens": 1,
            "completion_tokens": 5,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 1},
        }
    assert (summary.completed, summary.reused, summary.failed) == (7, 3, 0)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (4, 0, 20)
    assert (summary.agreed, summary.expected) == (1, 2)
    assert summary.rows_per_second == pytest.approx(4 / summary.seconds)
    with Journal(place.out) as journal:  # the row of a follower is its own line's
        assert len(set(journal.answered.values())) == 7
        assert not journal.notes.under_way
    with answering(place.server.url) as worker:
        assert (await place.run()).skipped == 7
    assert not worker.answered
    assert place.states() == {}


async def test_followers_are_in_the_window_and_have_no_job(place: BatchFiles) -> None:
    place.write(*equal(5), *equal(5, "other"))
    with answering(place.server.url) as worker:
        worker.gate.clear()
        running = asyncio.create_task(place.run(RunOptions(window=7)))
        await until(lambda: place.queued() >= 2)
        assert place.queued() == 2
        worker.gate.set()
        summary = await running
    assert (summary.completed, summary.reused) == (10, 8)
    assert worker.computed_once() == 2


async def test_rows_that_the_client_refuses_have_their_own_faults(place: BatchFiles) -> None:
    class Small(AsyncClient):
        async def submit_many(self, jobs: Iterable[Any], **options: Any) -> Any:
            outcomes = await super().submit_many([job | {"id": "a b"} for job in jobs], **options)
            assert all(isinstance(one, Exception) for one in outcomes), outcomes
            return outcomes

    place.client = Small
    place.write(*equal(4))
    assert (await place.run()).failed == 4


async def test_a_cancelled_leader_is_followed_by_the_next_line(place: BatchFiles) -> None:
    place.write(*equal(4))
    running = asyncio.create_task(place.run())
    await until(lambda: place.queued() == 1)
    async with AsyncClient(place.server.url) as client:
        [job_id] = place.states()
        await client.cancel(job_id)
        await until(lambda: len(place.states()) == 2)
    with answering(place.server.url) as worker:
        summary = await running
    assert worker.computed_once() == 1
    assert (summary.completed, summary.failed, summary.reused) == (3, 1, 2)


async def test_a_run_that_dies_while_followers_get_rows_goes_on(place: BatchFiles) -> None:
    class Full(Journal):
        rows_left = 4

        def write(self, answers: Iterable[Mapping[str, Any]], errors: Iterable[Mapping[str, Any]]) -> int:
            if not Full.rows_left:
                raise WriteFailed("no space left")
            Full.rows_left -= 1
            return super().write(answers, errors)

    place.write(*equal(9))
    place.journal = Full
    with answering(place.server.url) as worker:
        with pytest.raises(WriteFailed):
            await place.run()
        assert len(place.answers()) == 4
        place.journal = Journal
        summary = await place.run()
        assert worker.computed_once() == 2  # answers of earlier runs are not reused
    assert (summary.completed, summary.reused, summary.skipped) == (5, 4, 4)
    assert set(place.answers().values()) == {"HELLO"}
    assert len(place.answers()) == 9


async def test_jobs_of_an_earlier_run_are_collected(place: BatchFiles) -> None:
    """Although a run that reuses answers would not have sent them."""
    place.write(*equal(4))
    sending = asyncio.create_task(place.run(APART))
    await until(lambda: place.queued() == 4)
    sending.cancel()
    await asyncio.wait([sending])
    place.write(*equal(6))
    with answering(place.server.url) as worker:
        summary = await place.run()
        assert worker.computed_once() == 4
    assert (summary.completed, summary.reused) == (6, 2)
    assert len(place.answers()) == 6
    assert place.states() == {}


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_line_whose_equal_is_answered_gets_its_row_from_out(place: BatchFiles, name: str) -> None:
    """With one line under way at once, there are no followers. The second run appends to what there is."""
    out = place.folder / name
    command = (*place.command[:4], out, *place.command[5:], "--window", 1, "--in-order", "--json")
    lines = [*equal(2, "a"), *equal(2, "b"), completion("a-2", "a", temperature=0)]
    large = "日本 \u2028 🙂" * 5_000  # more than one piece of a file
    more = [completion(f"{i}", prompt, temperature=0) for i, prompt in enumerate((large, "c", large))]
    with answering(place.server.url) as worker:
        for there, reused in ((lines, 3), (lines + more, 1)):
            place.write(*there)
            done = invoke(*command)
            assert done.exit_code == 0, done.output
            assert json.loads(done.stdout)["reused"] == reused
        assert worker.computed_once() == 4
    data = gzip.decompress(out.read_bytes()) if name.endswith(".gz") else out.read_bytes()
    rows = [json.loads(line) for line in data.splitlines()]
    texts = [(row["custom_id"], row["response"]["body"]["choices"][0]["text"]) for row in rows]
    assert texts == [(line["custom_id"], line["body"]["prompt"].upper()) for line in lines + more]


def _random_line(chance: Random, number: int) -> dict[str, Any]:
    prompt = chance.choice(("one", "two", "fail", f"three{CUT}"))
    body: dict[str, Any] = {"temperature": chance.choice((0, 0, 0, 1))}
    body |= {"seed": 7} if chance.random() < 0.3 else {}
    body |= {"max_tokens": 99} if chance.random() < 0.2 else {}
    body |= {"n": 1} if chance.random() < 0.2 else {}
    body |= {"response_format": {"type": "json_object"}} if chance.random() < 0.3 else {}
    body |= {"metadata": {"expected": "one", "line": str(number)}} if chance.random() < 0.5 else {}
    if chance.random() < 0.3:
        messages = [{"role": "user", "content": prompt}]
        return {
            "custom_id": f"{number}",
            "url": "/v1/chat/completions",
            "body": {"messages": messages, **body},
        }
    return completion(f"{number}", prompt, **body)


def _told(request: Request) -> str | ErrorInfo:
    """An answer that says what it is asked for."""
    text = shout(request)
    if isinstance(text, ErrorInfo):
        return text
    return f"{request.digest()} {'chat' if request.messages else ''} {text}"


def _rows(place: BatchFiles) -> dict[str, Any]:
    """All rows by custom_id, without what differs in each run: jobs' ids, usage and times."""
    found = {}
    for row in read_rows(place.out) + read_rows(place.errors):
        response = row["response"]
        response.pop("request_id")
        for name in ("id", "created", "usage", "cached"):
            response["body"].pop(name, None)
        if row["error"]:
            row["error"].pop("message")
            response["body"].get("error", {}).pop("message", None)
        assert row["custom_id"] not in found
        found[row["custom_id"]] = row
    return found


@pytest.mark.slow
async def test_rows_are_those_of_a_run_that_computes_each_line(place: BatchFiles) -> None:
    for seed in range(3):
        chance = Random(seed)
        lines = [_random_line(chance, number) for number in range(150)]
        found = []
        for options in (RunOptions(window=chance.choice((1, 9, 200))), APART):
            for path in (place.out, place.errors, place.run_file):
                path.unlink(missing_ok=True)
            place.write(*lines)
            with answering(place.server.url, answer=_told) as worker:
                summary = await place.run(options)
            assert worker.computed_once() + summary.reused == len(lines)
            found.append((_rows(place), summary))
        (reused, some), (apart, all_) = found
        assert reused == apart
        assert (some.reused > 20, all_.reused) == (True, 0)
        for count_ in ("completed", "failed", "incomplete", "agreed", "expected"):
            assert getattr(some, count_) == getattr(all_, count_), count_
