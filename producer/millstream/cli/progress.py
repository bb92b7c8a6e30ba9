"""A batch run on the screen: a bar while it runs, a line now and then where there is no terminal."""

from __future__ import annotations

import asyncio

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from millstream.batch.run import BatchRun
from millstream.cli.terminal import errors, say

REFRESH_S = 0.2
LINE_EVERY_S = 15.0


async def show_progress(run: BatchRun) -> None:
    """Until cancelled."""
    if errors.is_terminal:
        await _bar(run)
    else:
        await _lines(run)


async def _bar(run: BatchRun) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, auto_refresh=False) as progress:
        task = progress.add_task("batch", total=None, failed=0, speed=0.0)
        try:
            while True:
                _update(progress, run, task)
                await asyncio.sleep(REFRESH_S)
        finally:
            _update(progress, run, task)


def _update(progress: Progress, run: BatchRun, task: object) -> None:
    tally = run.tally
    progress.update(
        progress.task_ids[0],
        completed=tally.done,
        total=max(run.source.estimated_lines, tally.done),
        failed=tally.failed,
        speed=tally.tokens_per_second(run.seconds),
        refresh=True,
    )


async def _lines(run: BatchRun) -> None:
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        tally = run.tally
        say(
            f"{tally.done:,} of {run.source.estimated_lines:,} lines, {tally.failed:,} failed, "
            f"{tally.tokens_per_second(run.seconds):,.0f} tokens/s"
        )
