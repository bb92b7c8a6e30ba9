"""Batch runs from a program, with a client of either kind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.batch_files import BatchFiles, answers_of, documents
from support.servers.servers import Server
from support.workers.answering_worker import answering, completion, read_rows, write_lines
from support.workers.counting_worker import until
from support.workers.hand_worker import replace_model

from millstream import (
    AsyncClient,
    BatchProgress,
    BatchSummary,
    Client,
    InvalidRequest,
    ModelIdentity,
    batch_rows,
    batch_rows_blocking,
    run_batch,
    run_batch_blocking,
)
from millstream.batch import run_batch as module
from millstream.batch.files.journal import Journal
from millstream.batch.rows import batch_lines
from millstream.batch.written_rows import WrittenRows
from millstream.openai.request_body import read_body


@pytest.fixture
async def client(valkey: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(valkey.url) as made:
        yield made


class Panic(BaseException):
    """As a library in Rust raises it."""


async def test_a_program_has_the_same_preparation_as_the_command(
    valkey: Server, tmp_path: Path, client: AsyncClient
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [completion("a", model="never-used")])
    with pytest.raises(InvalidRequest, match="names a queue that this server does not have"):
        await run_batch(client, source, out)
    with Journal(out) as journal:
        journal.notes.submits("default", [own_id := journal.notes.own_id("d" * 32)])
    await client.submit(prompt="x", id=own_id)
    write_lines(source, [completion("a", "please fail"), completion("b", "one")])
    with answering(valkey.url) as worker:
        first = await run_batch(client, source, str(out), lane="interactive")
        again = await run_batch(client, source, out, retry_failed=True)
    assert (first.completed, first.failed) == (1, 1)
    assert (again.failed, again.skipped) == (1, 1)
    [row] = read_rows(out)
    assert row["response"]["body"]["choices"][0]["text"] == "ONE"
    with Journal(out) as journal:
        assert not journal.notes.under_way
    assert len(worker.answered) <= 4


HOSTILE: dict[str, tuple[dict[str, Any], str | None]] = {
    "huge": ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"multipleOf": 10**400}}}},
             "body.response_format.json_schema.schema"),
    "deep": ({"chat_template_kwargs": json.loads("[" * 300 + "]" * 300)}, "body.chat_template_kwargs"),
    "panic": ({"user": "panic"}, None),
}  # fmt: skip


@pytest.mark.parametrize("retry", [False, True])
async def test_a_line_whose_reading_raises_is_an_error_row(
    monkeypatch: pytest.MonkeyPatch, valkey: Server, tmp_path: Path, retry: bool, client: AsyncClient
) -> None:
    """Also in a run that goes on, and compares its lines with their rows."""

    def read(endpoint: Any, body: Any, **given: Any) -> Any:
        if body.get("user") == "panic":
            raise Panic("secret")
        return read_body(endpoint, body, **given)

    monkeypatch.setattr(batch_lines, "read_body", read)
    lines = [completion(name, **fields) for name, (fields, _) in HOSTILE.items()]
    source = write_lines(tmp_path / "in.jsonl", [completion("a", "one"), *lines, completion("b", "two")])
    with answering(valkey.url):
        summary = await run_batch(client, source, out := tmp_path / "out.jsonl")
        if retry:
            write_lines(source, [completion("a", "one"), *lines, completion("b", "two"), completion("c")])
            await run_batch(client, source, out, retry_failed=True)
    assert (summary.completed, summary.failed) == (2, len(HOSTILE))
    told = {row["custom_id"]: row["error"] for row in read_rows(tmp_path / "out.errors.jsonl")}
    assert {name: error["param"] for name, error in told.items()} == {n: f for n, (_, f) in HOSTILE.items()}
    assert told["panic"]["code"] == "unreadable_request"
    assert "Panic" in told["panic"]["message"]
    assert "secret" not in told["panic"]["message"]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_program_is_told_that_its_model_was_replaced(
    place: BatchFiles, keep: bool, client: AsyncClient
) -> None:
    """Midway, and when it goes on: no row of the other model stands beside the first ones, unless kept."""
    old, new = ModelIdentity("old", "0" * 32), ModelIdentity("new", "1" * 32)
    place.write(*documents(6))
    await replace_model(place.server.url, old)

    def run(on_change: Literal["stop", "redo", "keep"] = "stop") -> Coroutine[Any, Any, BatchSummary]:
        return run_batch(client, place.source, place.out, on_change=on_change)

    with answering(place.server.url) as worker:
        worker.model, worker.after = old, 2
        running = asyncio.create_task(run("keep" if keep else "stop"))
        await until(lambda: len(place.answers()) == 2)
        worker.model = new
        await replace_model(place.server.url, new)
        worker.gate.set()
        if keep:
            assert ((await running).completed, (await run()).skipped) == (6, 6)
        else:
            with pytest.raises(InvalidRequest, match=r"^model: an answer of queue 'default' is by new "):
                await running
            assert set(place.models().values()) == {"old"}
            with pytest.raises(InvalidRequest, match=r"'default' now has new .* 6 lines were answered or"):
                await run()
            assert (await run("redo")).completed == 6
    assert place.answers() == answers_of(6)
    assert sorted(place.models().values()) == (["new"] * 4 + ["old"] * 2 if keep else ["new"] * 6)
    assert place.noted_models() == ["old", "new"]


async def test_a_program_is_told_the_progress(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch, client: AsyncClient
) -> None:
    """While it runs, and when it has ended; an exception then ends the run, which goes on later."""
    monkeypatch.setattr(module, "PROGRESS_S", 0.01)
    place.write(*documents(6), completion("hot", temperature="hot"))
    told: list[BatchProgress] = []

    def note(progress: BatchProgress) -> None:
        told.append(progress)
        if progress.completed == 2:
            raise Panic("enough")

    with answering(place.server.url) as worker:
        worker.after = 2
        with pytest.raises(Panic):
            await run_batch(client, place.source, place.out, on_progress=note, window=3)
        last = told[-1]
        assert (last.lines, last.done, last.completed, last.under_way) == (7, 2, 2, 3)
        worker.gate.set()
        done = await run_batch(client, place.source, place.out, on_progress=told.append)
        assert worker.computed_once() == 6
    last = told[-1]
    assert (last.completed, last.failed, last.skipped, last.done, last.under_way) == (4, 1, 2, 7, 0)
    assert last.seconds >= done.seconds > 0


class Page(BaseModel):
    b: str
    a: str = ""


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (SCHEMA, '{"type":"object","properties":{"b":{},"a":{}}}'),
        ({"type": "json_schema", "json_schema": {"name": "page", "schema": SCHEMA}}, '"properties":{"b":{}'),
        (Page, '"additionalProperties":false'),
        ({"type": "text"}, None),
        (None, None),
    ],
)
async def test_a_schema_is_for_the_lines_that_ask_for_no_format(
    place: BatchFiles, schema: Any, text: str | None, client: AsyncClient
) -> None:
    own = completion("own", "own", response_format={"type": "text"})
    place.write(completion("a", "plain"), own)
    with answering(place.server.url) as worker:
        await run_batch(client, place.source, place.out, schema=schema)
        formats = {one.prompt: one.response_format for one in worker.requests.values()}
        assert formats["own"] is None
        made = formats["plain"]
        assert made is None if text is None else made is not None and text in made.text
        with pytest.raises(InvalidRequest, match="1 line has changed"):
            await run_batch(client, place.source, place.out, schema={"enum": [1]})
        with pytest.raises(InvalidRequest, match=r"^schema: "):
            await run_batch(client, place.source, place.out, schema=5)  # type: ignore[arg-type]


async def test_rows_are_read_while_the_run_writes_them(place: BatchFiles, client: AsyncClient) -> None:
    """Those of earlier runs first. Who stops reading interrupts the run."""
    place.write(*documents(6), completion("hot", temperature="hot"))
    with answering(place.server.url) as worker:
        worker.after = 3
        async with aclosing(batch_rows(client, place.source, place.out)) as rows:
            first = [await anext(rows) for _ in range(4)]
            assert len(place.answers()) == 3  # the others have none yet
        assert sorted(row["custom_id"] for row in first) == [*sorted(place.answers()), "hot"]
        worker.gate.set()
        again = [row async for row in batch_rows(client, place.source, place.out)]
        assert worker.computed_once() == 6
    assert again[:3] == [row for row in first if row["response"]]
    assert sorted(map(str, again)) == sorted(map(str, read_rows(place.out) + read_rows(place.errors)))
    assert place.answers() == answers_of(6)


async def test_what_ends_a_run_reaches_the_reader_of_its_rows(place: BatchFiles, client: AsyncClient) -> None:
    def panic(_: BatchProgress) -> None:
        raise Panic("enough")

    place.write(*documents(2))
    with answering(place.server.url), pytest.raises(Panic):
        [row async for row in batch_rows(client, place.source, place.out, on_progress=panic)]
    assert len(place.answers()) == 2
    with Journal(place.out), pytest.raises(InvalidRequest, match="another run is writing"):
        await anext(batch_rows(client, place.source, place.out))


@pytest.mark.slow
async def test_a_slow_reader_slows_the_run(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch, client: AsyncClient
) -> None:
    """Unread rows wait in the files, with no more of them than the bound and the window."""
    waiting: list[bool] = []

    class Watched(WrittenRows):
        async def room(self) -> None:
            waiting.append(True)
            await super().room()
            waiting.clear()

    monkeypatch.setattr(module, "WrittenRows", Watched)
    place.write(*(completion(f"doc-{i}", f"{i} " + "x" * 100_000) for i in range(60)))
    with answering(place.server.url) as worker:
        async with aclosing(batch_rows(client, place.source, place.out, window=4)) as rows:
            await anext(rows)
            await until(lambda: bool(waiting))
            assert len(place.answers()) < 20
            assert len([row async for row in rows]) == 59
    assert worker.computed_once() == 60


@pytest.mark.parametrize(("field", "value"), [("lane", "fast"), ("on_change", "ask")])
def test_a_word_that_is_none_of_them_is_named(field: str, value: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {field: value}
    with Client() as client, pytest.raises(InvalidRequest, match=f"{field}: must be one of .*'{value}'"):
        run_batch_blocking(client, tmp_path / "in.jsonl", tmp_path / "out.jsonl", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_program_without_asyncio_does_so_too(valkey: Server, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_lines(source, [completion(name, "one", temperature=0) for name in "ab"])
    with Client(valkey.url) as client, answering(valkey.url) as worker:
        rows = batch_rows_blocking(client, source, out, window=1, reuse=False)
        assert [row["custom_id"] for row in rows] == ["a", "b"]
        assert worker.computed_once() == 2
        assert run_batch_blocking(client, source, out).skipped == len(read_rows(out)) == 2
        with pytest.raises(TypeError, match="no option 'patience'"):
            run_batch_blocking(client, source, out, patience=None)  # type: ignore[call-arg]


def test_a_client_that_runs_no_batch_imports_none() -> None:
    """Its journal locks files by `fcntl`, which not every system has."""
    code = "import sys, millstream; print('millstream.batch.files.journal' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
