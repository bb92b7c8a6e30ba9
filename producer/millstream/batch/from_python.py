"""A batch run from a program: the steps of `millstream batch run`, with an existing client."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

from millstream.batch.files.input_lines import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import begin
from millstream.batch.prepare_run import prepare, read_models
from millstream.batch.run.on_change import OnChange
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Summary
from millstream.client.async_client import AsyncClient
from millstream.errors import InvalidRequest
from millstream.wire.keys import Lane

E = TypeVar("E", bound=StrEnum)


class BatchFields(TypedDict, total=False):
    """The arguments of AsyncClient.batch_run beside the two files."""

    queue: str | None
    lane: Lane | str
    tenant: str
    keep_results: bool
    reuse: bool
    on_change: Literal["stop", "redo", "keep"]
    retry_failed: bool
    retry_incomplete: bool


async def batch_run(
    client: AsyncClient,
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    queue: str | None = None,
    lane: Lane | str = Lane.BATCH,
    tenant: str = "",
    keep_results: bool = False,
    reuse: bool = True,
    on_change: str = OnChange.STOP,
    retry_failed: bool = False,
    retry_incomplete: bool = False,
) -> Summary:
    """See AsyncClient.batch_run."""
    options = RunOptions(
        queue=queue,
        lane=_one_of(Lane, "lane", lane),
        tenant=tenant,
        keep_results=keep_results,
        on_change=_one_of(OnChange, "on_change", on_change),
        reuse=reuse,
    )
    journal, path = Journal(Path(out)), Path(source)
    await asyncio.to_thread(journal.__enter__)
    try:
        retried = journal.failures(failed=retry_failed, incomplete=retry_incomplete)
        served = await read_models(client, journal)
        survey = await asyncio.to_thread(begin, path, journal, options, retried=retried, served=served)
        await prepare(client, journal, options, survey)
        with InputFile(path) as lines:
            summary = await BatchRun(lines, journal, client, options).run()
        await asyncio.to_thread(journal.finish)
    finally:
        await asyncio.to_thread(journal.close)
    return summary


def _one_of(kind: type[E], field: str, value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(field, value, f"must be one of {', '.join(kind)}") from None
