"""Runs a batch from a program: the steps of `millstream batch run`, with an existing client."""

from __future__ import annotations

import asyncio
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from millstream.batch.files.input_file import InputFile
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import begin
from millstream.batch.prepare_run import prepare, read_models
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Summary
from millstream.client.async_client import AsyncClient
from millstream.client.sync_client import Client
from millstream.openai.fields.value_forms import one_of
from millstream.wire.keys import Lane


class BatchFields(TypedDict, total=False):
    """The options of `run_batch`."""

    queue: str | None
    lane: Lane | str
    tenant: str
    keep_results: bool
    reuse: bool
    strict_fields: bool
    on_change: Literal["stop", "redo", "keep"]
    retry_failed: bool
    retry_incomplete: bool


async def run_batch(
    client: AsyncClient,
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    queue: str | None = None,
    lane: Lane | str = Lane.BATCH,
    tenant: str = "",
    keep_results: bool = False,
    reuse: bool = True,
    strict_fields: bool = False,
    on_change: str = OnChange.STOP,
    retry_failed: bool = False,
    retry_incomplete: bool = False,
) -> Summary:
    """Answers every line of `source` (JSONL, OpenAI Batch format): answers to `out`, error rows beside it.

    An interrupted run, called again with the same files, computes no line twice. Options: `queue` for all
    lines, overriding their `body.model`; `lane`, `tenant`; `keep_results` on the server when their rows are
    on disk; `reuse` False computes equal lines each by itself; `strict_fields`: a field that nothing reads
    raises InvalidRequest before the first job, otherwise it is counted in the summary; `on_change`: if lines,
    or their queue's model, have changed since they were answered, "stop" raises InvalidRequest, "redo"
    answers them again, "keep" leaves their rows; `retry_failed` tries the lines of the error file again,
    except those whose answers were cut, which `retry_incomplete` does.

    If a queue's model is replaced midway, "stop" and "redo" raise InvalidRequest before a row of the other
    model is written; called again with "redo" or "keep", the run goes on.

    Raises InvalidRequest for files that cannot be used, Unavailable if the server stays silent, and
    QueueMismatch.
    """
    options = RunOptions(
        queue=queue,
        lane=one_of(Lane, "lane", lane),
        tenant=tenant,
        keep_results=keep_results,
        on_change=one_of(OnChange, "on_change", on_change),
        reuse=reuse,
        strict_fields=strict_fields,
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


def run_batch_blocking(
    client: Client, source: str | PathLike[str], out: str | PathLike[str], **options: Unpack[BatchFields]
) -> Summary:
    """Runs a batch as `run_batch` does, for programs without asyncio."""
    return client.run(lambda behind: run_batch(behind, source, out, **options))
