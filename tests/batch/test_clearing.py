"""A run leaves nothing on the server of jobs whose rows are on disk, and forgets none before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from support.batch_files import BatchFiles
from support.workers.answering_worker import answering, completion, read_rows

from millstream import AsyncClient, Unavailable
from millstream.batch.files.journal import Journal, WriteFailed
from millstream.batch.running import clearing as module
from millstream.batch.running.run import RunOptions
from millstream.errors import JobError


@pytest.fixture
def place(place: BatchFiles) -> BatchFiles:
    place.write(*lines(40))
    return place


def lines(count: int) -> Sequence[dict[str, Any]]:
    return [completion(f"doc-{i}", f"text {i}" if i % 7 else "please fail") for i in range(count)]


@pytest.mark.parametrize("keep", [False, True])
async def test_answers_and_failures_are_forgotten_unless_they_are_to_be_kept(
    place: BatchFiles, keep: bool
) -> None:
    with answering(place.server.url):
        summary = await place.run(RunOptions(keep_results=keep))
    assert (summary.completed, summary.failed) == (34, 6)
    assert len(place.states()) == (40 if keep else 0)


async def test_the_server_holds_no_more_than_is_under_way(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLEAR_JOBS", 4)
    forget_many, most = AsyncClient.forget_many, 0

    async def counted(client: AsyncClient, job_ids: Iterable[str]) -> dict[str, bool | JobError]:
        nonlocal most
        most = max(most, len(place.states()))
        return await forget_many(client, job_ids)

    monkeypatch.setattr(AsyncClient, "forget_many", counted)
    place.write(*lines(120))
    with answering(place.server.url):
        await place.run(RunOptions(window=8))
    assert 4 <= most < 40  # of 120
    assert place.states() == {}


async def test_rows_are_on_disk_before_their_jobs_are_forgotten(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLEAR_JOBS", 5)
    sync, forget_many = Journal.sync, AsyncClient.forget_many
    on_disk: set[str] = set()

    def synced(journal: Journal) -> None:
        written = {
            row["response"]["request_id"] for path in (journal.out, journal.errors) for row in read_rows(path)
        }
        sync(journal)
        on_disk.update(written)

    async def checked(client: AsyncClient, job_ids: Iterable[str]) -> dict[str, bool | JobError]:
        ids = list(job_ids)
        assert set(ids) <= on_disk
        outcomes = await forget_many(client, ids)
        assert all(outcome is True for outcome in outcomes.values())
        return outcomes

    monkeypatch.setattr(Journal, "sync", synced)
    monkeypatch.setattr(AsyncClient, "forget_many", checked)
    with answering(place.server.url):
        await place.run(RunOptions(window=9))
    assert len(on_disk) == 40


@pytest.mark.parametrize("seed", range(4))
async def test_wherever_a_run_is_cut_off_nothing_is_lost_or_computed_twice(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(module, "CLEAR_JOBS", 3)
    at = random.Random(seed)
    forget_many, cut = AsyncClient.forget_many, asyncio.Event()

    async def cut_off(client: AsyncClient, job_ids: Iterable[str]) -> dict[str, bool | JobError]:
        before = at.random() < 0.5
        if not before:
            await forget_many(client, job_ids)
        if at.random() < 0.4:
            cut.set()
            await asyncio.sleep(60)
        return await forget_many(client, job_ids) if before else {}

    monkeypatch.setattr(AsyncClient, "forget_many", cut_off)
    with answering(place.server.url) as worker:
        for _ in range(100):
            cut.clear()
            running, cutting = asyncio.create_task(place.run()), asyncio.create_task(cut.wait())
            await asyncio.wait([running, cutting], return_when=asyncio.FIRST_COMPLETED)
            cutting.cancel()
            if running.done():
                break
            running.cancel()
            await asyncio.wait([running])
    assert await running
    rows = [*read_rows(place.out), *read_rows(place.errors)]
    assert sorted(row["custom_id"] for row in rows) == sorted(line["custom_id"] for line in lines(40))
    assert worker.computed_once() == 40


async def test_a_server_that_forgets_nothing_does_not_end_the_run(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("away")

    monkeypatch.setattr(AsyncClient, "forget_many", away)
    with answering(place.server.url):
        assert (await place.run()).completed == 34
    assert len(place.states()) == 40


async def test_what_is_not_on_disk_is_not_forgotten(
    place: BatchFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Journal) -> None:
        raise WriteFailed(f"{journal.out} cannot be written: no space left")

    monkeypatch.setattr(Journal, "sync", full)
    with answering(place.server.url), pytest.raises(WriteFailed):
        await place.run()
    assert len(place.states()) == 40
