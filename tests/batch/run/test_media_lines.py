"""Lines whose images are files below a folder, and pages of PDF files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from support.batch_files import BatchFiles
from support.wire.image_files import data_url, png
from support.wire.pdf_files import pdf
from support.workers.answering_worker import answering, completion, read_rows
from support.workers.hand_worker import register

from millstream import AsyncClient, InvalidRequest, run_batch
from millstream.batch.media import media_reader
from millstream.batch.media.media_folder import MediaFolder
from millstream.batch.media.pdf_pages import MachineProblem
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run_options import RunOptions
from millstream.wire.keys import QueueKeys
from millstream.wire.messages.job_messages import Request
from millstream.wire.versions import TAKEN


def line(custom_id: str, *images: str, **part: Any) -> dict[str, Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    content = [*parts, *([part] if part else []), {"type": "text", "text": f"page {custom_id}"}]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    return {"custom_id": custom_id, "url": "/v1/chat/completions", "body": body}


def shown(request: Request) -> str:
    return json.dumps([hashlib.sha256(image.data).hexdigest()[:8] for image in request.images])


def digests(*images: bytes) -> str:
    return json.dumps([hashlib.sha256(image).hexdigest()[:8] for image in images])


def told(place: BatchFiles) -> dict[str, str]:
    rows = read_rows(place.out)
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows}


@pytest.fixture
def media(place: BatchFiles) -> Path:
    register(place.server.port, QueueKeys("default").shard(0), version_max=str(TAKEN.high), images="1")
    (folder := place.folder / "media").mkdir()
    for shade in (1, 2):
        (folder / f"{shade}.png").write_bytes(png(shade))
    return folder


async def test_files_are_sent_and_changes_are_found(place: BatchFiles, media: Path) -> None:
    options = RunOptions(media=MediaFolder.of(media))
    (media / "bad.png").write_bytes(b"no image")
    place.write(
        line("one", "1.png"),
        line("both", "2.png", type="image", image=str(media / "1.png")),
        line("mixed", data_url(png(9)), "2.png"),
        line("none", "3.png"),
        line("bad", "bad.png"),
        line("again", "1.png", "1.png"),
        line("out", "../in.jsonl"),
        completion("text", "hello"),
    )
    with answering(place.server.url, answer=shown) as worker:
        summary = await place.run(options)
        assert (summary.completed, summary.failed) == (5, 3)
        answers = {"one": [1], "both": [2, 1], "mixed": [9, 2], "again": [1]}
        rows = [row for row in read_rows(place.out) if row["custom_id"] != "text"]
        found = {
            row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in rows
        }
        assert found == {name: digests(*map(png, shades)) for name, shades in answers.items()}
        where = "body.messages[0].content[0].image_url.url"
        assert place.faults() == [(number, "invalid_field", where) for number in (4, 5, 7)]
        texts = {row["custom_id"]: row["error"]["message"] for row in read_rows(place.errors)}
        assert "'bad.png'" in texts["bad"]
        assert "is no whole PNG" in texts["bad"]
        assert texts["out"].endswith("and the Python client only (got '../in.jsonl')")
        assert (await place.run(options)).skipped == 8  # nothing has changed
        (media / "2.png").write_bytes(png(3))
        (media / "3.png").write_bytes(png(3))
        with pytest.raises(InvalidRequest, match=r"2 lines have changed since they were answered \(2, 3\)"):
            await place.run(options)
        async with AsyncClient(place.server.url) as client:
            again = await run_batch(
                client, place.source, place.out, media=media, on_change="redo", retry_failed=True
            )
        assert (again.completed, again.failed) == (3, 2)
    assert worker.computed_once() == 8


async def test_a_job_that_is_lost_is_read_again(place: BatchFiles, media: Path) -> None:
    """The server is emptied while a file's job, and a large line's, are under way."""
    options = RunOptions(media=MediaFolder.of(media))
    large = "x" * 100_000
    place.write(line("file", "1.png"), "", line("large", data_url(png(2))) | {"note": large})

    def emptied(request: Request) -> str:
        if not lost:
            lost.append(1)
            with redis.Redis(port=place.server.port) as client:
                client.flushall()
            register(
                place.server.port, QueueKeys("default").shard(0), version_max=str(TAKEN.high), images="1"
            )
        return shown(request)

    lost: list[int] = []
    with answering(place.server.url, answer=emptied):
        summary = await place.run(options)
    assert summary.completed == 2
    assert told(place) == {"file": digests(png(1)), "large": digests(png(2))}


async def test_answers_stay_while_their_files_are_away(place: BatchFiles, media: Path) -> None:
    """Only a file that is another one now has its line answered anew; one that is away is no change."""
    (media / "3.png").write_bytes(png(3))
    place.write(line("kept", "1.png"), line("changed", "2.png"), line("late", "none.png"))
    options = RunOptions(media=MediaFolder.of(media))
    with answering(place.server.url, answer=shown) as worker:
        assert (await place.run(options)).completed == 2
        (media / "1.png").rename(media / "away")
        assert (await place.run(options)).skipped == 3
        (media / "2.png").write_bytes(png(4))
        with pytest.raises(InvalidRequest, match=r"1 line has changed since it was answered \(2\)"):
            await place.run(options)
        redone = replace(options, on_change=OnChange.REDO, retry_failed=True)
        assert (await place.run(redone)).skipped == 1
        assert told(place) == {"kept": digests(png(1)), "changed": digests(png(4))}
        [error] = [row["error"]["message"] for row in read_rows(place.errors)]
        assert f"cannot be read below {media} (No such file or directory) (got 'none.png')" in error
        (media / "away").rename(media / "1.png")
        assert (await place.run(replace(redone, retry_failed=False))).skipped == 3
    assert worker.computed_once() == 3


async def test_a_forgotten_folder_costs_no_answer(place: BatchFiles, media: Path) -> None:
    lines = [line("file", "1.png"), line("data", data_url(png(9)))]
    place.write(*lines)
    with answering(place.server.url, answer=shown) as worker:
        assert (await place.run(RunOptions(media=MediaFolder.of(media)))).completed == 2
        told_of = "media: line 1 was answered from files; give their folder"
        for change in (OnChange.STOP, OnChange.REDO):
            with pytest.raises(InvalidRequest, match=told_of):
                await place.run(RunOptions(on_change=change))
        place.write(*lines, line("more", data_url(png(5))))
        more = await place.run(RunOptions(on_change=OnChange.KEEP))
        assert (more.skipped, more.completed) == (2, 1)
    shades = {"file": 1, "data": 9, "more": 5}
    assert told(place) == {name: digests(png(shade)) for name, shade in shades.items()}
    assert worker.computed_once() == 3


async def test_a_line_that_lost_its_body_has_changed(place: BatchFiles, media: Path) -> None:
    options = RunOptions(media=MediaFolder.of(media))
    place.write(line("file", "1.png"))
    with answering(place.server.url, answer=shown):
        await place.run(options)
    place.write({"custom_id": "file", "url": "/v1/chat/completions"})
    with pytest.raises(InvalidRequest, match="1 line has changed since it was answered"):
        await place.run(options)


async def test_a_machine_without_files_ends_the_run(
    place: BatchFiles, media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row has its error, and the run goes on later."""
    place.write(line("1", "1.png"), line("2", "2.png"))
    options = RunOptions(media=MediaFolder.of(media))

    def lacking(*_: object) -> None:
        raise MachineProblem("1.png cannot be opened (Too many open files)")

    with answering(place.server.url, answer=shown):
        with monkeypatch.context() as patched:
            patched.setattr(media_reader, "opened", lacking)
            with pytest.raises(MachineProblem, match="no page is at fault: start the same command again"):
                await place.run(options)
        assert (read_rows(place.out), read_rows(place.errors)) == ([], [])
        assert (await place.run(options)).completed == 2


@pytest.mark.slow
async def test_pages_of_a_file(place: BatchFiles, media: Path) -> None:
    (media / "a.pdf").write_bytes(pdf(0.0, 0.5, 1.0))
    place.write(*(line(f"a.pdf#page={page}", f"a.pdf#page={page}") for page in (1, 2, 3, 4)))
    with answering(place.server.url, answer=shown):
        async with AsyncClient(place.server.url) as client:
            summary = await run_batch(client, place.source, place.out, media=media, pdf_dpi=72)
    assert (summary.completed, summary.failed) == (3, 1)
    assert len(set(told(place).values())) == 3
    [row] = read_rows(place.errors)
    assert row["error"]["message"].endswith("image_url.url: has 3 pages (got 'a.pdf#page=4')")


async def test_pages_under_way_are_little_of_the_server(place: BatchFiles, media: Path) -> None:
    """50 pages of a MiB, far fewer than a run has under way of small lines."""
    for number in range(50):
        (media / f"{number}.png").write_bytes(png(number) + number.to_bytes(1) * 2**20)
    place.write(*(line(str(number), f"{number}.png") for number in range(50)))
    server = redis.Redis(port=place.server.port)
    used: list[int] = []

    def measured(_: Request) -> str:
        used.append(server.info("memory")["used_memory"])
        return "read"

    used.append(server.info("memory")["used_memory"])
    with answering(place.server.url, answer=measured):
        summary = await place.run(RunOptions(media=MediaFolder.of(media), message_bytes=4 * 2**20))
    assert summary.completed == 50
    assert 2 * 2**20 < max(used) - used[0] < 10 * 2**20
