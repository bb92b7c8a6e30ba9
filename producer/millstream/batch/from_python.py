"""A batch run for programs: what `millstream batch run` does with a file, with a client that is there."""

from __future__ import annotations

import asyncio
from os import PathLike
from pathlib import Path

from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.run import BatchRun, RunOptions
from millstream.batch.survey import OnChange, begin
from millstream.batch.tally import Summary
from millstream.client.async_client import AsyncClient
from millstream.wire.keys import Lane


async def batch_run(
    client: AsyncClient,
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    queue: str | None = None,
    lane: Lane | str = Lane.BATCH,
    tenant: str = "",
    keep_results: bool = False,
    on_change: OnChange | str = OnChange.STOP,
) -> Summary:
    """Answer every line of `source` (JSONL, OpenAI Batch format): answers to `out`, error rows beside it.

    Interrupted and called again with the same files it computes nothing twice. `queue`: for all lines,
    whatever their `body.model` says. `on_change`: where lines have changed since they were answered, `stop`
    raises InvalidRequest, `redo` answers them anew, `keep` leaves their rows as they are. From code without
    asyncio: `client.run(lambda c: batch_run(c, …))`.

    Raises InvalidRequest for files that cannot be used, Unavailable where the server stays silent, and
    QueueMismatch.
    """
    options = RunOptions(queue=queue, lane=Lane(lane), tenant=tenant, keep_results=keep_results)
    with Journal(Path(out)) as journal:
        await asyncio.to_thread(begin, Path(source), journal, options, OnChange(on_change))
        with InputFile(Path(source)) as lines:
            summary = await BatchRun(lines, journal, client, options).run()
        journal.finish()
    return summary
