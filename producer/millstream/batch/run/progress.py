"""Tells a program the counts of a run under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from millstream.batch.run.run import BatchRun
from millstream.batch.run.tally import Progress, Summary
from millstream.client.session.run_while import run_while

EVERY_S = 1.0


OnProgress = Callable[[Progress], None]


async def told(run: BatchRun, on_progress: OnProgress | None) -> Summary:
    """Run it, with a call once a second and one at the end. Raises what both raise."""
    if on_progress is None:
        return await run.run()
    summary = await run_while(_tell(run, on_progress), run.run())
    on_progress(_progress_of(run))
    return summary


async def _tell(run: BatchRun, on_progress: OnProgress) -> NoReturn:
    while True:
        await asyncio.sleep(EVERY_S)
        on_progress(_progress_of(run))


def _progress_of(run: BatchRun) -> Progress:
    tally, seconds = run.tally, run.clock.elapsed_s
    lines = max(run.source.total or 0, tally.done)  # it may have grown since they were counted
    return Progress(lines, tally.completed, tally.failed, tally.skipped, run.lines.under_way, seconds)
