"""Runs a batch from a program: the steps of `millstream batch run`, with an existing client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NoReturn, TypedDict, Unpack

from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.media.media_folder import DEFAULT_DPI, MediaFolder, PageFormat
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run import BatchRun
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import BatchProgress, Summary
from millstream.batch.written_rows import WrittenRows
from millstream.client.async_client import AsyncClient
from millstream.client.session.run_while import run_while
from millstream.client.sync_client import Client
from millstream.openai.fields.value_forms import one_of
from millstream.openai.structured_outputs import SchemaArgument, format_of_schema
from millstream.wire.keys import Lane

PROGRESS_S = 1.0  # between two calls
OnProgress = Callable[[BatchProgress], None]
FilePath = str | PathLike[str]


class BatchFields(TypedDict, total=False):
    """The options of a run. All have defaults, which are those of `millstream batch run`."""

    queue: str | None  # for all lines, overriding their body.model
    window: int  # jobs under way at once
    lane: Lane | str
    tenant: str
    schema: SchemaArgument | None  # a JSON schema, a pydantic model or OpenAI's `response_format`, for lines
    # that ask for no format
    media: FilePath | None  # a folder: images of lines may be files below it, and pages (`scan.pdf#page=3`)
    pdf_dpi: int  # of such pages
    page_format: Literal["png", "jpeg"]  # of the same
    keep_results: bool  # on the server when their rows are on disk
    reuse: bool  # False: equal lines are computed each by itself
    in_order: bool  # lines are sent in the order of the file, not those that begin alike together
    strict_fields: bool  # a field that nothing reads raises InvalidRequest before the first job; otherwise it
    # is counted in the summary
    on_change: Literal["stop", "redo", "keep"]  # if lines, or their queue's model, have changed since they
    # were answered: raise InvalidRequest, answer them again, leave their rows
    retry_failed: bool  # try the lines of the error file again, but those whose answers were cut
    retry_incomplete: bool  # those, too
    # A plain function, called about once a second and at the end in the thread of the client's loop; an
    # exception in it ends the run.
    on_progress: OnProgress | None


_CONVERTED = ("schema", "on_progress", "media", "pdf_dpi", "page_format")


async def run_batch(
    client: AsyncClient, source: FilePath, out: FilePath, **options: Unpack[BatchFields]
) -> Summary:
    """Answers every line of `source` (JSONL, OpenAI Batch format): answers to `out`, error rows beside it.

    An interrupted run, called again with the same files, computes no line twice. `options` are the fields of
    `BatchFields`.

    If a queue's model is replaced midway, "stop" and "redo" raise InvalidRequest before a row of the other
    model is written; called again with "redo" or "keep", the run goes on.

    Raises InvalidRequest for files that cannot be used, Unavailable if the server stays silent, and
    QueueMismatch.
    """
    async with _prepared(client, source, out, options) as session:
        with session.running(client) as run:
            return await _told(run, options.get("on_progress"))


def run_batch_blocking(
    client: Client, source: FilePath, out: FilePath, **options: Unpack[BatchFields]
) -> Summary:
    """Runs a batch as `run_batch` does, for programs without asyncio."""
    return client.run(lambda behind: run_batch(behind, source, out, **options))


async def batch_rows(
    client: AsyncClient, source: FilePath, out: FilePath, **options: Unpack[BatchFields]
) -> AsyncGenerator[dict[str, Any]]:
    """Runs a batch as `run_batch` does, with its options and its files, and yields each row of `out` and of
    the error file once it is written; first those that earlier runs have left there.

    A slow reader slows the run down: with a megabyte of unread rows it submits no more. Closing the iterator
    (`contextlib.aclosing` does so at once) interrupts the run; a later call goes on, and yields all rows.
    """
    async with _prepared(client, source, out, options) as session:
        with WrittenRows(session.journal) as written, session.running(client, written.room) as run:
            async with aclosing(written.during(_told(run, options.get("on_progress")))) as rows:
                async for row in rows:
                    yield row


def batch_rows_blocking(
    client: Client, source: FilePath, out: FilePath, **options: Unpack[BatchFields]
) -> Iterator[dict[str, Any]]:
    """Yields rows as `batch_rows` does, for programs without asyncio."""
    return client.iterate(lambda behind: batch_rows(behind, source, out, **options))


async def _told(run: BatchRun, on_progress: OnProgress | None) -> Summary:
    if on_progress is None:
        return await run.run()

    async def tell() -> NoReturn:
        while True:
            await asyncio.sleep(PROGRESS_S)
            on_progress(run.progress)

    summary = await run_while(tell(), run.run())
    on_progress(run.progress)
    return summary


@asynccontextmanager
async def _prepared(
    client: AsyncClient, source: FilePath, out: FilePath, given: BatchFields
) -> AsyncIterator[BatchSession]:
    """The run is finished at the end, unless an exception ends it."""
    session = BatchSession(Path(source), journal := Journal(Path(out)), _options(given))
    await asyncio.to_thread(journal.__enter__)
    try:
        await session.read_models(client)
        await asyncio.to_thread(session.compare)
        await session.prepare(client)
        yield session
        await asyncio.to_thread(journal.finish)
    finally:
        await asyncio.to_thread(journal.close)


def _options(given: BatchFields) -> RunOptions:
    """Raises InvalidRequest for a value, TypeError for a name that is none of them."""
    if unknown := given.keys() - BatchFields.__annotations__.keys():
        raise TypeError(f"a batch run has no option {min(unknown)!r}")
    fields: dict[str, Any] = {key: one for key, one in given.items() if key not in _CONVERTED}
    fields["media"] = _media(given)
    schema = given.get("schema")
    fields["lane"] = one_of(Lane, "lane", given.get("lane", Lane.BATCH))
    fields["on_change"] = one_of(OnChange, "on_change", given.get("on_change", OnChange.STOP))
    return RunOptions(**fields, response_format=None if schema is None else format_of_schema(schema))


def _media(given: BatchFields) -> MediaFolder | None:
    if (folder := given.get("media")) is None:
        return None
    made_as = one_of(PageFormat, "page_format", given.get("page_format", PageFormat.PNG))
    return MediaFolder.of(Path(folder), given.get("pdf_dpi", DEFAULT_DPI), made_as)
