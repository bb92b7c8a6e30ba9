"""A run leaves nothing on the server of jobs whose rows are on disk, and forgets none before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from support.batch_files import BatchFiles, alike
from support.workers.answering_worker import answering, completion, read_rows

from millstream import AsyncClient, Unavailable
from millstream.batch.files.journal import Journal, WriteFailed
from millstream.batch.run.run_options import RunOptions
from millstream.errors import JobError


@pytest.fixture
def place(place: BatchFiles) -> BatchFiles:
    place.write(*lines(40))
    return place


def lines(count: int) -> Sequence[dict[str, Any]]:
    return [completion(f"doc-{i}", f"text {i}" if i % 7 else "please fail") for i in range(count)]


@pytest.mark.parametrize("keep", [False, True])
async def test_answers_and_failures_are_forgotten_unless_kept(place: BatchFiles, keep: bool) -> None:
    with answering(place.server.url):
        summary = await place.run(RunOptions(keep_results=keep))
    assert (summary.completed, summary.failed) == (34, 6)
    assert len(place.states()) == (40 if keep else 0)


async def test_the_server_holds_no_more_than_is_under_way(place: BatchFiles) -> None:
    most = 0

    class Counted(AsyncClient):
        async def forget_many(self, job_ids: Iterable[str], **how: bool) -> dict[str, bool | JobError]:
            nonlocal most
            most = max(most, len(place.states()))
            return await super().forget_many(job_ids, **how)

    place.client = Counted
    place.write(*lines(120))
    with answering(place.server.url):
        await place.run(RunOptions(window=8, clear_jobs=4))
    assert 4 <= most < 40  # of 120
    assert place.states() == {}


async def test_rows_are_on_disk_before_their_jobs_are_forgotten(place: BatchFiles) -> None:
    on_disk: set[str] = set()

    class Synced(Journal):
        def sync(self) -> None:
            rows = [*read_rows(self.out), *read_rows(self.errors)]
            super().sync()
            on_disk.update(row["response"]["request_id"] for row in rows)

    class Checked(AsyncClient):
        async def forget_many(self, job_ids: Iterable[str], **how: bool) -> dict[str, bool | JobError]:
            ids = list(job_ids)
            assert set(ids) <= on_disk
            outcomes = await super().forget_many(ids, **how)
            assert all(outcome is True for outcome in outcomes.values())
            return outcomes

    place.journal, place.client = Synced, Checked
    with answering(place.server.url):
        await place.run(RunOptions(window=9, clear_jobs=5))
    assert len(on_disk) == 40


@pytest.mark.parametrize("seed", range(4))
async def test_a_run_cut_off_anywhere_loses_and_repeats_nothing(place: BatchFiles, seed: int) -> None:
    at = random.Random(seed)
    cut = asyncio.Event()

    class CutOff(AsyncClient):
        async def forget_many(self, job_ids: Iterable[str], **how: bool) -> dict[str, bool | JobError]:
            before = at.random() < 0.5
            if not before:
                await super().forget_many(job_ids, **how)
            if at.random() < 0.4:
                cut.set()
                await asyncio.sleep(60)
            return await super().forget_many(job_ids, **how) if before else {}

    place.client = CutOff
    wanted = alike(40, 6) if seed % 2 else lines(40)
    place.write(*wanted)
    with answering(place.server.url) as worker:
        for _ in range(100):
            cut.clear()
            running = asyncio.create_task(place.run(RunOptions(clear_jobs=3)))
            cutting = asyncio.create_task(cut.wait())
            await asyncio.wait([running, cutting], return_when=asyncio.FIRST_COMPLETED)
            cutting.cancel()
            if running.done():
                break
            running.cancel()
            await asyncio.wait([running])
    assert await running
    rows = [*read_rows(place.out), *read_rows(place.errors)]
    assert sorted(row["custom_id"] for row in rows) == sorted(line["custom_id"] for line in wanted)
    assert worker.computed_once() == 40


async def test_a_server_that_forgets_nothing_does_not_end_the_run(place: BatchFiles) -> None:
    class Away(AsyncClient):
        async def forget_many(self, job_ids: Iterable[str], **how: bool) -> dict[str, bool | JobError]:
            raise Unavailable("away")

    place.client = Away
    with answering(place.server.url):
        assert (await place.run()).completed == 34
    assert len(place.states()) == 40


async def test_what_is_not_on_disk_is_not_forgotten(place: BatchFiles) -> None:
    class Full(Journal):
        def sync(self) -> None:
            raise WriteFailed(f"{self.out} cannot be written: no space left")

    place.journal = Full
    with answering(place.server.url), pytest.raises(WriteFailed):
        await place.run()
    assert len(place.states()) == 40
