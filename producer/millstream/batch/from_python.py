"""A batch run for programs: what `millstream batch run` does with a file, with a client that is there."""

from __future__ import annotations

import asyncio
from os import PathLike
from pathlib import Path

from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.preparing import prepare
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
    retry_failed: bool = False,
) -> Summary:
    """Answer every line of `source` (JSONL, OpenAI Batch format): answers to `out`, error rows beside it.

    Interrupted and called again with the same files it computes nothing twice. `queue`: for all lines,
    whatever their `body.model` says. `on_change`: where lines have changed since they were answered, `stop`
    raises InvalidRequest, `redo` answers them anew, `keep` leaves their rows as they are. `retry_failed`
    tries the lines of the error file again. From code without
    asyncio: `client.run(lambda c: batch_run(c, …))`.

    Raises InvalidRequest for files that cannot be used, Unavailable where the server stays silent, and
    QueueMismatch.
    """
    options = RunOptions(queue=queue, lane=Lane(lane), tenant=tenant, keep_results=keep_results)
    journal, path, change = Journal(Path(out)), Path(source), OnChange(on_change)
    await asyncio.to_thread(journal.__enter__)
    try:
        survey = await asyncio.to_thread(begin, path, journal, options, change, retry_failed=retry_failed)
        if retry_failed:
            await asyncio.to_thread(journal.retry_failed)
        await prepare(client, journal, options, survey)
        with InputFile(path) as lines:
            summary = await BatchRun(lines, journal, client, options).run()
        await asyncio.to_thread(journal.finish)
    finally:
        await asyncio.to_thread(journal.close)
    return summary
