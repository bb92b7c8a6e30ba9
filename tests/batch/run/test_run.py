"""Whole runs through a real server, answered by a worker in a thread."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import redis
import redis.asyncio
from support.batch_files import BatchFiles, answers_of, documents
from support.servers.servers import Server, lasting_server
from support.workers.answering_worker import answering, completion, read_rows
from support.workers.counting_worker import until
from support.workers.hand_worker import replace_model

from millstream import (
    AsyncClient,
    ClientOptions,
    InvalidRequest,
    ModelIdentity,
    QueueFull,
    QueueMismatch,
    Request,
    Unavailable,
)
from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.input_check import InputCheck
from millstream.batch.rows.batch_lines import BatchLine, read_row
from millstream.batch.rows.line_splitter import MAX_LINE_BYTES
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run_options import Patience, RunOptions
from millstream.wire import calls
from millstream.wire.keys import Lane, QueueKeys
from millstream.wire.state.queue_info import QueueInfo, create_or_read


async def test_every_line_has_its_answer(server: Server, tmp_path: Path) -> None:
    place = BatchFiles(server, tmp_path)
    place.write(*documents(300))
    with answering(place.server.url) as worker:
        summary = await place.run(RunOptions(window=40))
    assert place.answers() == answers_of(300)
    assert place.faults() == []
    assert (summary.completed, summary.failed, summary.skipped) == (300, 0, 0)
    assert worker.computed_once()
    assert summary.output_tokens == sum(len(text) for text in place.answers().values())


async def test_bad_lines_become_error_rows_and_the_rest_goes_on(place: BatchFiles) -> None:
    place.write(
        b"\xef\xbb\xbf" + b'{"custom_id": "bom", "url": "/v1/completions", "body": {"prompt": "one"}}\r\n',
        "",
        "{not json",
        "[1, 2]",
        {"url": "/v1/completions", "body": {"prompt": "x"}},
        completion("bom", "repeated"),
        completion("u") | {"url": "/v1/embeddings"},
        completion("t", temperature="hot"),
        completion("s", tools=[{"type": "function"}]),
        completion("l", "x" * MAX_LINE_BYTES),
        b'{"custom_id": "bytes \xff"}\n',
        completion("f", "please fail"),
        completion("ok", "日本 🙂", tempo=3),
    )
    refused = (12, "model_refused", "body.prompt")
    found = InputCheck(RunOptions())
    with InputFile(place.source) as source:
        found.take(source, "in.jsonl")
    assert (found.lines, found.findings.lines, found.models) == (12, 3, {"": 3})
    with answering(place.server.url):
        summary = await place.run()
    assert place.answers() == {"bom": "ONE", "ok": "日本 🙂"}
    assert (
        place.faults()
        == [*((bad.line, bad.code, bad.field) for bad in found.shown), refused]
        == [
            (3, "invalid_json", None), (4, "not_an_object", None), (5, "missing_custom_id", "custom_id"),
            (6, "duplicate_custom_id", "custom_id"), (7, "unknown_url", "url"),
            (8, "invalid_field", "body.temperature"), (9, "unsupported_parameter", "body.tools"),
            (10, "line_too_long", None), (11, "invalid_encoding", None), refused,
        ]
    )  # fmt: skip
    assert (summary.completed, summary.failed) == (2, 10)
    assert summary.unknown_fields == (("tempo", 1),)
    by_line = {row["error"]["line"]: row for row in read_rows(place.errors)}
    assert [by_line[line]["custom_id"] for line in (3, 6, 8, 12)] == [None, "bom", "t", "f"]


async def test_custom_ids_come_back_as_they_were(place: BatchFiles) -> None:
    ids = ["ключ 7", "🙂" * 512, "a\x00b", 'line\n"quoted"\\', "é", "e\u0301", " ", "\u2028", "null", "0"]
    place.write(*(completion(custom_id, f"text {i}") for i, custom_id in enumerate(ids)))
    with answering(place.server.url) as worker:
        await place.run()
        assert place.answers() == {custom_id: f"TEXT {i}" for i, custom_id in enumerate(ids)}
        assert (await place.run()).skipped == len(ids)
    assert worker.computed_once()


def listed(i: int) -> dict[str, Any]:
    return completion(f"list-{i}", [f"{i} {j}" for j in range(3)])


@pytest.mark.parametrize(
    ("lines", "options", "most", "jobs"),
    [
        (documents(50), RunOptions(window=7), 7, 50),
        ([completion(f"doc-{i}", "x" * 2_900) for i in range(9)], RunOptions(window_bytes=10_000), 3, 9),
        ([*map(listed, range(4)), completion("text")], RunOptions(window=7), 6, 13),
    ],
    ids=["jobs", "bytes", "jobs of lists"],
)
async def test_no_more_than_the_window_is_under_way(
    place: BatchFiles, lines: list[Any], options: RunOptions, most: int, jobs: int
) -> None:
    place.write(*lines)
    with answering(place.server.url) as worker:
        worker.gate.clear()
        running = asyncio.create_task(place.run(options))
        await until(lambda: place.queued() >= most)
        for _ in range(20):  # the run has every chance to submit more
            await asyncio.sleep(0)
        assert place.queued() == most
        worker.gate.set()
        assert (await running).completed == len(lines)
        assert worker.computed_once() == jobs


async def test_a_slow_job_does_not_keep_its_chunk_in_memory(place: BatchFiles) -> None:
    place.write(*(completion(f"chunk-{i}") for i in range(50)))
    with answering(place.server.url) as worker:
        worker.after = 49
        running = asyncio.create_task(place.run())
        await until(lambda: len(place.answers()) == 49)
        alive = [
            row for row in gc.get_objects() if type(row) is BatchLine and row.custom_id.startswith("chunk")
        ]
        assert len(alive) < 5
        worker.gate.set()
        assert (await running).completed == 50


async def test_the_model_names_the_queue(place: BatchFiles) -> None:
    place.write(completion("a", model="org/large"), completion("b"))
    large = answering(place.server.url, "org/large", lambda _: "large")
    with large, answering(place.server.url, "default", lambda _: "standard"):
        await place.run()
    assert place.answers() == {"a": "large", "b": "standard"}


async def test_jobs_that_the_server_forgot_are_submitted_again(place: BatchFiles) -> None:
    place.write(*documents(4))
    with answering(place.server.url) as worker:
        worker.gate.clear()
        running = asyncio.create_task(place.run())
        await until(lambda: place.queued() >= 4)
        place.server.flush()
        worker.gate.set()
        summary = await running
    assert summary.completed == 4
    assert len(place.answers()) == 4


async def test_a_server_that_stays_away_ends_the_run(tmp_path: Path) -> None:
    with lasting_server() as server:
        place = BatchFiles(server, tmp_path)
        place.write(*documents(4))
        running = asyncio.create_task(place.run(client=ClientOptions(reconnect_s=0.2)))
        await until(lambda: place.queued() >= 4)
        server.kill()
        with pytest.raises(Unavailable):
            await running
        server.start()
        with answering(server.url) as worker:
            await place.run()
        assert len(place.answers()) == 4
        assert worker.computed_once()


IMPATIENT = RunOptions(window=10, patience=Patience(silence_s=0.1, again_s=0.01))


class Submits:
    """What becomes of the submits of a `client`, by their number: `plan` gives an error, or None for the
    server's own answer."""

    def __init__(self, plan: Callable[[int], Exception | None]) -> None:
        self.calls = 0
        submits = self

        class Planned(AsyncClient):
            async def submit_many(self, jobs: Any, **options: Any) -> Any:
                submits.calls += 1
                match plan(submits.calls):
                    case QueueFull() as full:
                        return [full for _ in jobs]
                    case Exception() as error:
                        raise error
                return await super().submit_many(jobs, **options)

        self.client = Planned


async def test_a_server_that_is_away_when_a_chunk_is_to_be_sent(place: BatchFiles) -> None:
    place.client = Submits(lambda call: Unavailable("away") if call in (2, 3, 5) else None).client
    place.write(*documents(60))
    with answering(place.server.url) as worker:
        assert (await place.run(IMPATIENT)).completed == 60
    assert worker.computed_once()


async def test_a_server_that_takes_nothing_more_is_given_up_in_time(place: BatchFiles) -> None:
    submits = Submits(lambda call: Unavailable("away") if call > 1 else None)
    place.client = submits.client
    place.write(*documents(30))
    with answering(place.server.url), pytest.raises(Unavailable, match="away"):
        await place.run(IMPATIENT)
    assert submits.calls > 3
    submits.calls = 1
    with pytest.raises(Unavailable, match="away"):  # never there: told at once
        await place.run(IMPATIENT)
    assert submits.calls == 2


async def test_a_full_queue_uses_no_patience_for_a_silent_server(place: BatchFiles) -> None:
    begun, away = time.monotonic(), iter([Unavailable("away")])

    def plan(_: int) -> Exception | None:
        full = time.monotonic() - begun < 0.3
        return QueueFull("default", 1, 1, 1.0) if full else next(away, None)

    place.client = Submits(plan).client
    place.write(*documents(3))
    with answering(place.server.url):
        assert (await place.run(IMPATIENT)).completed == 3


async def test_each_queue_has_one_client(place: BatchFiles) -> None:
    made = []

    class Noted(AsyncClient):
        def with_queue(self, queue: str) -> Self:
            made.append(queue)
            return super().with_queue(queue)

    place.client = Noted
    place.write(*documents(30))
    with answering(place.server.url):
        await place.run(RunOptions(window=3))
    assert made == ["default"]


async def test_an_earlier_job_answered_by_another_model_is_redone(place: BatchFiles) -> None:
    """By a run that is to redo what has changed: it would stop at this answer whenever it is started."""
    old, new = ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)
    place.write(line := completion("a", "one"))
    row = read_row(1, "a", line, lane=Lane.BATCH, tenant="")
    with answering(place.server.url) as worker:
        worker.model = old
        with Journal(place.out) as journal:
            own_id = journal.notes.own_id(row.digest)
            journal.notes.submits("default", [own_id])
            journal.notes.serves("default", new)
        async with AsyncClient(place.server.url) as client:
            await client.submit_many([{"request": row.requests[0], "id": own_id}])
            await client.wait(own_id)
        worker.model = new
        await replace_model(place.server.url, new)
        with pytest.raises(InvalidRequest, match="an answer of queue 'default' is by old"):
            await place.run()
        assert place.answers() == {}
        await place.run(RunOptions(on_change=OnChange.REDO))
        assert worker.computed_once() == 2
    assert place.models() == {"a": "new"}


async def test_chat_lines_and_logprobs_and_tenants_reach_the_worker(place: BatchFiles) -> None:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 7,
        "metadata": {"expected": "no"},
    }
    place.write({"custom_id": "a", "url": "/v1/chat/completions", "body": body})
    with answering(place.server.url, answer=lambda _: " No. ") as worker:
        summary = await place.run(RunOptions(tenant="acme"))
    [request] = worker.requests.values()
    assert isinstance(request, Request)
    assert request.messages is not None
    assert request.messages[0].content == "hi"
    assert request.sampling.max_tokens == 7
    assert request.tenant == "acme"
    assert (summary.agreed, summary.expected) == (1, 1)
    [row] = read_rows(place.out)
    assert row["response"]["body"]["choices"][0]["message"]["content"] == " No. "
    assert row["response"]["body"]["metadata"] == {"expected": "no"}


async def test_a_run_ends_where_all_workers_are_too_old(place: BatchFiles) -> None:
    """Its lines have no error rows: once there is a newer worker, the same run answers them."""
    async with redis.asyncio.Redis.from_url(place.server.url) as direct:
        await calls.run(direct, create_or_read(QueueKeys("default"), QueueInfo(version_max=1)))
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    place.write({"custom_id": "a", "url": "/v1/chat/completions", "body": body})
    with pytest.raises(QueueMismatch, match="takes message version 1 and not 2"):
        await place.run()
    assert place.faults() == []
