"""Whole runs whose lines begin alike: what is sent in which order, and what stays as it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.batch_files import BatchFiles, alike, capitals
from support.workers.answering_worker import answering, completion, read_rows, write_lines

from millstream import AsyncClient, BatchProgress, run_batch
from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.run.run_options import RunOptions
from millstream.client.submit.submission import Outcome


class Noted(AsyncClient):
    """`sent`: the ends of the prompts, in the order in which they were submitted."""

    sent: list[str]

    async def submit_many(self, jobs: Sequence[Any], **how: Any) -> list[Outcome]:
        Noted.sent += [job["request"].prompt.rpartition(" ")[2] for job in jobs]
        return await super().submit_many(jobs, **how)


@pytest.fixture
def noted(place: BatchFiles) -> BatchFiles:
    place.client = Noted
    Noted.sent = []
    return place


GROUPED = [str(line) for group in range(4) for line in range(group, 22, 4)]
IN_FILE = [str(line) for line in range(22)]


@pytest.mark.parametrize(("in_order", "wanted"), [(False, GROUPED), (True, IN_FILE)])
async def test_lines_that_begin_alike_are_sent_together(
    noted: BatchFiles, in_order: bool, wanted: list[str]
) -> None:
    noted.write(*alike(22, 4))
    with answering(noted.server.url) as worker:
        summary = await noted.run(RunOptions(window=1, in_order=in_order))
        assert worker.computed_once() == 22
    assert Noted.sent == wanted
    assert noted.answers() == capitals(alike(22, 4))
    assert (summary.groups, summary.shared_tokens) == ((0, 0) if in_order else (4, 18 * 1024 // 4))


async def test_the_first_of_the_file_keeps_a_custom_id(noted: BatchFiles) -> None:
    """Although the line that repeats it is sent before. The next run finds nothing changed."""
    lines = alike(8, 4)
    lines[5] |= {"custom_id": "doc-3"}  # sent behind the first line
    noted.write(*lines)
    with answering(noted.server.url):
        await noted.run(RunOptions(window=1))
        assert Noted.sent == ["0", "4", "1", "2", "6", "3", "7"]
        assert noted.faults() == [(6, "duplicate_custom_id", "custom_id")]
        assert noted.answers() == capitals([*lines[:5], *lines[6:]])
        again = await noted.run()
    assert (again.completed, again.skipped, again.skipped_failed) == (0, 8, 1)


async def test_a_resumed_run_sends_the_rest_of_the_groups(noted: BatchFiles) -> None:
    noted.write(*alike(12, 3))
    with answering(noted.server.url):
        await noted.run(RunOptions(window=2))
        kept = [row for row in read_rows(noted.out) if row["custom_id"] not in ("doc-4", "doc-5", "doc-8")]
        write_lines(noted.out, kept)
        Noted.sent.clear()
        summary = await noted.run(RunOptions(window=2))
    assert (summary.completed, summary.skipped, summary.groups) == (3, 9, 3)
    assert Noted.sent == ["4", "5", "8"]


async def test_equal_lines_of_groups_are_computed_once(noted: BatchFiles) -> None:
    lines = [
        completion(f"{name}-{line['custom_id']}", line["body"]["prompt"], temperature=0)
        for name in "ab"
        for line in alike(6, 2)
    ]
    noted.write(*lines)
    with answering(noted.server.url) as worker:
        summary = await noted.run(RunOptions(window=4))
        assert worker.computed_once() == 6
    assert (summary.completed, summary.reused) == (12, 6)
    assert noted.answers() == capitals(lines)


async def test_changed_lines_are_answered_anew_among_their_groups(noted: BatchFiles) -> None:
    lines = alike(9, 3)
    noted.write(*lines)
    with answering(noted.server.url):
        await noted.run()
        lines[7]["body"]["prompt"] += "!"
        noted.write(*lines)
        options: dict[str, Any] = {"on_change": "redo"}
        async with AsyncClient(noted.server.url) as client:
            summary = await run_batch(client, noted.source, noted.out, **options)
    assert (summary.completed, summary.skipped) == (1, 8)
    assert noted.answers() == capitals(lines)


async def test_a_file_that_was_replaced_is_read_as_it_lies(noted: BatchFiles, tmp_path: Path) -> None:
    noted.write(*alike(9, 3))
    with Journal(noted.out) as journal:
        session = BatchSession(noted.source, journal, RunOptions(window=1))
        session.compare()
        write_lines(tmp_path / "other", alike(7, 2)).rename(noted.source)
        async with Noted(noted.server.url) as client:
            await session.prepare(client)
            with answering(noted.server.url), session.running(client) as run:
                await run.run()
    assert Noted.sent == [str(number) for number in range(7)]


async def test_a_program_may_keep_the_order_of_the_file(noted: BatchFiles) -> None:
    noted.write(*alike(8, 2))
    told: list[BatchProgress] = []
    with answering(noted.server.url):
        async with Noted(noted.server.url) as client:
            await run_batch(client, noted.source, noted.out, window=1, in_order=True, on_progress=told.append)
            assert Noted.sent == IN_FILE[:8]
            other = noted.folder / "other"
            await run_batch(client, noted.source, other, window=1, on_progress=told.append)
    assert (told[0].groups, told[-1].groups, told[-1].shared_tokens) == (0, 2, 6 * 256)
