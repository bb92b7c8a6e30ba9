"""`millstream batch run`: a JSONL file of requests in, files of answers and errors out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.batch.body import DEFAULT_QUEUE
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.preparing import make_ready, prepare
from millstream.batch.run import DEFAULT_WINDOW, BatchRun, RunOptions
from millstream.batch.spool import spool
from millstream.batch.survey import OnChange, Survey, begin
from millstream.batch.tally import Summary
from millstream.cli.batch_cancel import cancel, say_what_stays, settle_interrupt
from millstream.cli.beside import beside
from millstream.cli.conduct import load_model, reported
from millstream.cli.exits import ExitCode
from millstream.cli.help import Command, Group
from millstream.cli.interrupts import run_async
from millstream.cli.model_names import say_who_answers
from millstream.cli.options import AsJson, DurabilityOf, DurabilityTimeout, Model, RedisUrl, Replicas
from millstream.cli.progress import Shown, show_progress
from millstream.cli.stack import LocalModel, Stack, choose_model, open_stack
from millstream.cli.summary import as_mapping, print_summary, say_causes
from millstream.cli.terminal import print_json, say, warn
from millstream.client.async_client import AsyncClient
from millstream.client.options import ClientOptions
from millstream.errors import InvalidRequest, MillstreamError
from millstream.wire.durability import Durability
from millstream.wire.keys import Lane

UNSERVED_S = 3.0  # before it is worth a warning
STANDARD = Path("-")  # input or output
NO_SERVER = "unix:///dev/null"  # of a run that sends nothing

app = typer.Typer(cls=Group, help="Files of many requests.", no_args_is_help=True)


@app.callback()
def _batch() -> None:
    """Files of many requests."""


@app.command(cls=Command)
def run(
    source: Annotated[Path, typer.Argument(metavar="IN", help="JSONL in the OpenAI Batch input format.")],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where the answers go.")],
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Annotated[
        str | None, typer.Option(help="Send all lines to this queue, whatever their body.model says.")
    ] = None,
    window: Annotated[int, typer.Option(help="Jobs under way at once.")] = DEFAULT_WINDOW,
    lane: Annotated[Lane, typer.Option(help="Workers serve interactive before batch.")] = Lane.BATCH,
    tenant: Annotated[str, typer.Option(help="For whom: fairness and cached prefixes are per tenant.")] = "",
    journal_file: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="With -o -: the file that keeps the run's rows."),
    ] = None,
    redo_changed: Annotated[
        bool, typer.Option("--redo-changed", help="Answer lines anew that have changed since their answer.")
    ] = False,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Leave answers as they are, whatever has changed.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try the lines of the error file again.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are error rows.")] = False,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="PRICE", help="Of the hardware: adds what 1,000 rows and a million tokens cost."
        ),
    ] = None,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Cancel the run's jobs at the first Ctrl-C.")
    ] = False,
    keep_results: Annotated[
        bool,
        typer.Option("--keep-results", help="Leave results on the server after their rows are on disk."),
    ] = False,
    durability: DurabilityOf = Durability.NONE,
    replicas: Replicas = None,
    durability_timeout_s: DurabilityTimeout = 5.0,
    as_json: AsJson = False,
) -> None:
    """Answer every line of IN: answers to OUT, error rows to OUT without its ending + `.errors.jsonl`.

    Interrupted and started again with the same IN and OUT, it goes on; nothing is computed twice. IN may be
    compressed (gzip, zstd) or `-`; OUT is compressed where its name ends in .gz or .zst, or is `-`.
    With --redis-url `body.model` names the queue; without it, and for "default", the default queue. Without
    --redis-url the command's own worker answers all lines, whatever their `body.model`.
    """
    copy = sys.stdout.buffer if out == STANDARD else None  # rows only: all else goes to standard error
    with (
        nullcontext() if copy is None else redirect_stdout(sys.stderr),
        reported(as_json, lambda: "interrupted; run the same command again to go on"),
    ):
        on_change = _on_change(redo=redo_changed, keep=keep_answers)
        place = _place(out, journal_file)
        _check_input(source, place)
        client = ClientOptions(
            durability=durability, durability_replicas=replicas, durability_timeout_s=durability_timeout_s
        )
        local = choose_model(redis_url or None, model, say)
        queue = queue or (DEFAULT_QUEUE if local else None)  # the command's own worker is for all lines
        options = RunOptions(window=window, queue=queue, lane=lane, tenant=tenant, keep_results=keep_results)
        with Journal(place, local.name if local else None, copy=copy) as journal:
            lines = _spooled(journal) if source == STANDARD else source
            named = str(STANDARD) if source == STANDARD else ""
            survey = begin(lines, journal, options, on_change, named=named, retry_failed=retry_failed)
            if survey.missing:
                say(f"{survey.missing:,} rows of {place} answer lines that IN no longer has")
            if survey.mended:
                say(f"{len(survey.mended):,} lines that could not be run have changed, and are tried again")
            if retry_failed:
                say(f"trying {len(journal.failed) + len(journal.lines):,} lines again")
            if not survey.lines:
                warn(f"{source} has no lines; there is nothing to do")
            stack = _stack(redis_url or None, local, survey, queue or DEFAULT_QUEUE)
            with stack as opened, InputFile(lines) as rows:
                rows.total = survey.lines
                work = answer(opened, rows, journal, options, survey, client, price_per_hour=price_per_hour)
                summary = _finished(work, opened, journal, redis_url, at_once=cancel_on_interrupt)
            journal.finish()
            if source == STANDARD:
                journal.spool.unlink(missing_ok=True)
        report(summary, journal, price_per_hour, as_json=as_json)
    if summary.without_answers or (strict and journal.errors.stat().st_size):
        raise typer.Exit(ExitCode.FAILED)


app.command(cls=Command)(cancel)


def _stack(
    redis_url: str | None, local: LocalModel | None, survey: Survey, queue: str
) -> AbstractContextManager[Stack]:
    """A server and a worker of the command's own are started only where there is work for them."""
    if local is not None:
        if not survey.work:
            return nullcontext(Stack(NO_SERVER))
        say_who_answers(survey.models, local.name, queue)
    return open_stack(redis_url, local, say=say, queue=queue)


def _finished(
    work: Coroutine[Any, Any, Summary],
    stack: Stack,
    journal: Journal,
    redis_url: str | None,
    *,
    at_once: bool,
) -> Summary:
    try:
        return run_async(work)
    except KeyboardInterrupt:
        settle_interrupt(stack, journal, redis_url, at_once=at_once)
        raise
    except (MillstreamError, OSError):  # OSError: nobody reads standard output any more
        say_what_stays(stack, journal, redis_url)
        raise


async def answer(
    stack: Stack,
    source: InputFile,
    journal: Journal,
    options: RunOptions,
    survey: Survey,
    client_options: ClientOptions | None = None,
    *,
    price_per_hour: float | None = None,
) -> Summary:
    """Run the batch with its progress on the screen. `survey`: what was found out about `source`. Raises what
    BatchRun and Stack raise, and InvalidRequest where its lines name queues that the server does not have."""
    async with AsyncClient(stack.url, options=client_options) as client:
        if stack.url == NO_SERVER:
            make_ready(survey, journal, options)
        else:
            done = await prepare(client, journal, options, survey)
            if count := done.cancelled + done.running:
                say(f"{count:,} jobs of an earlier run that no line of IN asks for now were cancelled")
        journal.replay()
        batch = BatchRun(source, journal, client, options)
        return await stack.guard(_shown(stack, Shown(batch, price_per_hour), client, options.lane))


def report(summary: Summary, journal: Journal, price_per_hour: float | None, *, as_json: bool) -> None:
    say_causes(summary, journal)
    if summary.unknown_fields:
        names = ", ".join(f"{name} ({count:,})" for name, count in summary.unknown_fields[:10])
        warn(f"unknown fields were ignored, in so many lines: {names}")
    if summary.not_durable:
        warn(f"{summary.not_durable:,} jobs were queued, but not as durable in time as --durability asks")
    if as_json:
        print_json(as_mapping(summary, journal, price_per_hour))
    else:
        print_summary(summary, journal, price_per_hour)


async def _shown(stack: Stack, shown: Shown, client: AsyncClient, lane: Lane) -> Summary:
    await load_model(stack)
    watched = beside(show_progress(shown), shown.run.run())
    watched = beside(_watch_others(shown, client, lane), watched)
    return await beside(_warn_of_waiting(stack, shown.run), watched)


async def _watch_others(shown: Shown, client: AsyncClient, lane: Lane) -> None:
    while True:
        await asyncio.sleep(UNSERVED_S)
        if not shown.run.tally.ended:
            shown.behind = await jobs_before(client, shown.run, lane)


async def jobs_before(client: AsyncClient, batch: BatchRun, lane: Lane) -> int:
    """Of others, in the lanes that are served no later than this one; 0 where that cannot be read."""
    waiting = 0
    for queue in sorted(batch.queues):
        try:
            info = await client.with_queue(queue).queue_info()
        except MillstreamError:
            return 0
        for status in info.lanes:
            if status.waiting is None:
                return 0
            if lane is Lane.BATCH or status.lane == lane:
                waiting += status.waiting
    return max(0, waiting - batch.under_way)


async def _warn_of_waiting(stack: Stack, batch: BatchRun) -> None:
    """Once of a queue that is full, and for each queue that has jobs and no worker: they wait, which may be
    what is wanted."""
    seen: set[str] = set()
    full_told = False
    while True:
        await asyncio.sleep(UNSERVED_S)
        if batch.waits_for_room and not full_told:
            warn(f"{batch.waits_for_room}; the run waits until there is room")
            full_told = True
        for queue in sorted(batch.queues - seen):
            try:
                served = await stack.has_worker(queue)
            except MillstreamError:
                continue  # a server that is away for a moment is the run's own matter
            seen.add(queue)
            if not served:
                warn(f"no worker serves the queue {queue!r} now; its jobs wait until one does")


def _on_change(*, redo: bool, keep: bool) -> OnChange:
    if redo and keep:
        raise InvalidRequest("--redo-changed", True, "contradicts --keep-answers; give one of the two")
    return OnChange.REDO if redo else OnChange.KEEP if keep else OnChange.STOP


def _place(out: Path, journal_file: Path | None) -> Path:
    """Where the run's rows are kept."""
    if out != STANDARD and journal_file is not None:
        raise InvalidRequest("--journal", str(journal_file), "is for -o -; another OUT keeps the rows itself")
    if out != STANDARD:
        return out
    if journal_file is None:
        problem = "needs --journal FILE: it keeps the rows, so that an interrupted run can go on"
        raise InvalidRequest("--output", str(out), problem)
    if journal_file == STANDARD:
        raise InvalidRequest("--journal", str(journal_file), "names no file; the rows are kept in one")
    return journal_file


def _spooled(journal: Journal) -> Path:
    say(f"standard input is kept in {journal.spool} until the run has ended")
    spool(sys.stdin.buffer, journal.spool)
    return journal.spool


def _check_input(source: Path, place: Path) -> None:
    """Before OUT is made."""
    journal = Journal(place)
    if source != STANDARD:
        with InputFile(source):
            pass
    try:
        journal.check_place()
        if source == STANDARD:
            return
        for path in (journal.out, journal.rows, journal.errors, journal.run_file):
            if path.exists() and path.samefile(source):
                raise InvalidRequest("--output", str(place), f"{path} is the input; choose another file")
    except OSError as error:  # a name that no file can have
        raise InvalidRequest("--output", str(error.filename or place), str(error.strerror)) from error
