"""A check's lines are counted in chunks that are bounded in bytes, whatever their lines weigh."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.wire.image_files import data_url, png
from support.workers.answering_worker import write_lines

from millstream import ErrorInfo, InvalidRequest, JobFailed, Result, State, Unavailable
from millstream.batch import line_counts
from millstream.batch.files.input_file import InputFile
from millstream.batch.input_check import InputCheck
from millstream.batch.line_counts import LineCounts
from millstream.batch.run.run_options import RunOptions
from millstream.client.jobs.count_jobs import PromptTokens


class _Counter:
    """A client of workers that count one token for a character. `chunks`: the prompts of each call; `most`:
    bytes in calls under way at once.
    """

    def __init__(self, *, estimates: Sequence[str] = ()) -> None:
        self.queue = ""
        self.chunks: list[tuple[str, list[str]]] = []
        self.now = self.most = 0
        self.bad: dict[str, Exception] = {}
        self._estimates = estimates

    def with_queue(self, queue: str) -> _Counter:
        self.queue = queue
        return self

    async def count(self, text: str, *, lane: object) -> PromptTokens:
        return PromptTokens(1, self.queue in self._estimates)

    async def count_many(self, asked: Sequence[Any]) -> list[object]:
        prompts = [str(one["request"].prompt or one["request"].messages[0].content) for one in asked]
        self.chunks.append((self.queue, prompts))
        size = sum(map(len, prompts))
        self.now += size
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= size
        return [self.bad.get(prompt, PromptTokens(len(prompt), False)) for prompt in prompts]


def line(name: str, text: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "url": "/v1/completions", "body": {"prompt": text, **body}}


async def counted(path: Path, client: _Counter) -> tuple[LineCounts, InputCheck]:
    options = RunOptions()
    found = InputCheck(options)
    with InputFile(path) as source:
        found.take(source, "")
    counts = LineCounts(client, found, options)  # type: ignore[arg-type]
    await counts.take(path)
    return counts, found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_counts, "_CHUNK_BYTES", 4000)
    monkeypatch.setattr(line_counts, "_CHUNK_ROWS", 8)


@pytest.mark.usefixtures("small")
async def test_large_lines_are_counted_in_small_chunks(tmp_path: Path) -> None:
    """Of four calls at once, each has less than a line more than its bound."""
    write_lines(path := tmp_path / "in", [line(str(number), "x" * 1500) for number in range(40)])
    counts, found = await counted(path, client := _Counter())
    assert counts.tokens == 40 * 1500
    assert sorted(len(prompts) for _, prompts in client.chunks) == [1] + [3] * 13
    assert client.most == 4 * 3 * 1500
    assert (found.bad, counts.estimated) == (0, set())


@pytest.mark.usefixtures("small")
async def test_small_lines_are_counted_by_their_number(tmp_path: Path) -> None:
    lines = [line(str(number), "x" * (number + 1), model=f"q{number % 2}") for number in range(20)]
    write_lines(path := tmp_path / "in", lines)
    counts, _ = await counted(path, client := _Counter(estimates=["q1"]))
    assert counts.tokens == sum(range(1, 21, 2))
    assert [(queue, len(prompts)) for queue, prompts in client.chunks] == [("q0", 8), ("q0", 2)]
    assert counts.estimated == {"q1"}


@pytest.mark.usefixtures("small")
async def test_each_queue_has_chunks_of_its_own(tmp_path: Path) -> None:
    sizes = (3000, 10, 3000, 10, 10)
    lines = [line(str(at), str(at) * size, model=f"q{size}") for at, size in enumerate(sizes)]
    write_lines(path := tmp_path / "in", lines)
    counts, _ = await counted(path, client := _Counter())
    assert counts.tokens == sum(sizes)
    assert sorted((queue, len(prompts)) for queue, prompts in client.chunks) == [("q10", 3), ("q3000", 2)]


@pytest.mark.usefixtures("small")
async def test_refused_lines_are_told_by_their_places(tmp_path: Path) -> None:
    """A line of several prompts counts with all or with none of them."""
    lines = [line(str(at), str(at) * 1500) for at in range(8)]
    lines[5]["body"]["prompt"] = ["a" * 900, "b" * 1000, "c" * 1100]
    write_lines(path := tmp_path / "in", lines)
    client = _Counter()
    told = ErrorInfo(code="context_length_exceeded", message="prompt: too long", field="prompt")
    failed = JobFailed("j", told.code, told.message, Result(state=State.FAILED, error=told))
    client.bad = {"b" * 1000: failed, "7" * 1500: InvalidRequest("prompt", 1, "is too large")}
    counts, found = await counted(path, client)
    assert counts.tokens == 6 * 1500
    assert [(bad.line, bad.code, bad.field) for bad in found.shown] == [
        (6, "context_length_exceeded", "body.prompt[1]"),
        (8, "invalid_field", "body.prompt"),
    ]


async def test_images_weigh_what_their_lines_do(tmp_path: Path) -> None:
    """By the bound that a check has."""
    page = data_url(png() + bytes(2**20))
    content = [{"type": "image_url", "image_url": {"url": page}}, {"type": "text", "text": "read"}]
    body = {"messages": [{"role": "user", "content": content}]}
    lines = [{"custom_id": str(at), "url": "/v1/chat/completions", "body": body} for at in range(5)]
    write_lines(path := tmp_path / "in", lines)
    _, found = await counted(path, client := _Counter())
    assert found.bad == 0
    assert [len(prompts) for _, prompts in client.chunks] == [3, 2]


@pytest.mark.usefixtures("small")
async def test_a_server_that_is_lost_ends_the_count(tmp_path: Path) -> None:
    write_lines(path := tmp_path / "in", [line(str(at), f"{at}" * 5000) for at in range(9)])
    client = _Counter()
    client.bad = {"3" * 5000: Unavailable("gone")}
    with pytest.raises(Unavailable, match="gone"):
        await counted(path, client)
