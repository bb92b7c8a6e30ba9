"""What a run has spent, over its interruptions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.batch_files import BatchFiles
from support.workers.answering_worker import completion, read_rows
from support.workers.counting_worker import model_name, serving, until, write_tokenizer

from millstream import InvalidRequest
from millstream.batch.files.journal import Journal
from millstream.batch.files.spent import Spent
from millstream.batch.run.pace import NO_WORK, Work

LINES = [completion(f"doc-{i}", f"w{i}", max_tokens=3) for i in range(20)]


async def interrupt(place: BatchFiles, jobs: int) -> None:
    """A run that has submitted so many jobs."""
    running = asyncio.create_task(place.run())
    await until(lambda: place.queued() == jobs)
    running.cancel()
    await asyncio.wait([running])


async def test_a_resumed_run_does_not_flatter_itself(place: BatchFiles, tmp_path: Path) -> None:
    place.write(*LINES)
    await interrupt(place, 20)
    [first] = [Spent.of(row) for row in read_rows(place.run_file) if "seconds" in row]
    assert (first.seconds > 0, first.rows, first.output_tokens) == (True, 0, 0)
    async with serving(place.server, model_name(write_tokenizer(tmp_path / "words"))):
        await until(lambda: set(place.states().values()) == {"completed"})
        resumed = await place.run()
        assert (resumed.completed, resumed.output_tokens, resumed.work) == (20, 60, NO_WORK)
        assert resumed.rows_per_second == resumed.output_tokens_per_second == 0
        assert resumed.cost_per_thousand_rows(1.0) is resumed.cost_per_million_tokens(1.0) is None
        place.write(*LINES, *(completion(f"more-{i}", f"w{i}", max_tokens=4) for i in range(10)))
        last = await place.run()
    assert (last.skipped, last.work) == (20, Work(10, 10, 40))
    assert (last.spent.rows, last.spent.output_tokens) == (10, 40)
    assert last.spent.seconds >= first.seconds + resumed.seconds + last.seconds - 0.01


@pytest.mark.parametrize("seconds", ["true", '"1"', "-1", "1e999", "null"])
def test_damaged_notes_of_what_was_spent_are_refused(place: BatchFiles, seconds: str) -> None:
    with Journal(place.out) as journal:
        journal.notes.spends(Spent(1.5, 2, 3))
    with Journal(place.out) as journal:
        assert journal.notes.spent == Spent(1.5, 2, 3)
    with place.run_file.open("a") as file:
        file.write(f'{{"seconds":{seconds},"rows":0,"output_tokens":0}}\n')
    with pytest.raises(InvalidRequest, match="run file"), Journal(place.out):
        pass
