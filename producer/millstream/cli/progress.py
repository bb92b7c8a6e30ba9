"""A batch run on the screen: a bar while it runs, a line now and then where there is no terminal."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

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
        TextColumn("ETA {task.fields[eta]}"),
    )
    with Progress(*columns, console=errors, auto_refresh=False) as progress:
        task = progress.add_task("batch", total=None, failed=0, speed=0.0, eta="–")
        try:
            while True:
                _update(progress, run, task)
                await asyncio.sleep(REFRESH_S)
        finally:
            _update(progress, run, task)


def _update(progress: Progress, run: BatchRun, task: TaskID) -> None:
    tally = run.tally
    progress.update(
        task,
        completed=tally.done,
        total=max(run.source.estimated_lines, tally.done) or None,  # not known yet
        failed=tally.failed,
        speed=tally.tokens_per_second(run.elapsed_s),
        eta=eta(run),
        refresh=True,
    )


def eta(run: BatchRun) -> str:
    """At the pace of this run's own lines: those that were answered before it took no time."""
    ended = run.tally.completed + run.tally.failed
    left = max(0, run.source.estimated_lines - run.tally.done)
    if not ended or not run.elapsed_s:
        return "–"
    return str(timedelta(seconds=round(left * run.elapsed_s / ended)))


async def _lines(run: BatchRun) -> None:
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        tally = run.tally
        say(
            f"{tally.done:,} of {run.source.estimated_lines:,} lines, {tally.failed:,} failed, "
            f"{tally.tokens_per_second(run.elapsed_s):,.0f} tokens/s, ETA {eta(run)}"
        )
