"""`millstream batch run`: a JSONL file of requests in, files of answers and errors out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from millstream.batch.body import DEFAULT_QUEUE
from millstream.batch.journal import Journal
from millstream.batch.lines import InputFile
from millstream.batch.remaining import Remaining, look_ahead
from millstream.batch.run import DEFAULT_WINDOW, BatchRun, RunOptions
from millstream.batch.tally import Summary
from millstream.cli.beside import beside
from millstream.cli.conduct import load_model, reported
from millstream.cli.exits import ExitCode
from millstream.cli.model_names import check_queues, say_who_answers
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
NO_SERVER = "unix:///dev/null"  # of a run that sends nothing

app = typer.Typer(help="Files of many requests.", no_args_is_help=True)


@app.callback()
def _batch() -> None:
    """Files of many requests."""


@app.command()
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

    Interrupted and started again with the same IN and OUT, it goes on; nothing is computed twice.
    With --redis-url `body.model` names the queue; without it, and for "default", the default queue. Without
    --redis-url the command's own worker answers all lines, whatever their `body.model`.
    """
    with reported(as_json, lambda: "interrupted; run the same command again to go on"):
        _check_apart(source, out)
        options = RunOptions(window=window, queue=queue, lane=lane, tenant=tenant, keep_results=keep_results)
        client = ClientOptions(
            durability=durability, durability_replicas=replicas, durability_timeout_s=durability_timeout_s
        )
        local = choose_model(redis_url or None, model, say)
        with InputFile(source) as lines, Journal(out, local.name if local else None) as journal:
            if retry_failed:
                say(f"trying {journal.retry_failed():,} lines again")
            ahead = _looked_ahead(source, journal)
            lines.total = ahead.lines
            with _stack(redis_url or None, local, ahead, queue or DEFAULT_QUEUE) as stack:
                work = answer(
                    stack, lines, journal, options, client, models=ahead.models, price_per_hour=price_per_hour
                )
                summary = asyncio.run(work)
        report(summary, journal, price_per_hour, as_json=as_json)
    if summary.without_answers or (strict and journal.errors.stat().st_size):
        raise typer.Exit(ExitCode.FAILED)


def _looked_ahead(source: Path, journal: Journal) -> Remaining:
    with InputFile(source) as lines:
        ahead = look_ahead(lines, journal)
    if not ahead.lines:
        warn(f"{source} has no lines; there is nothing to do")
    return ahead


def _stack(
    redis_url: str | None, local: LocalModel | None, ahead: Remaining, queue: str
) -> AbstractContextManager[Stack]:
    """A server and a worker of the command's own are started only where there is work for them."""
    if local is not None:
        if not ahead.work:
            return nullcontext(Stack(NO_SERVER))
        say_who_answers(ahead.models, local.name, queue)
    return open_stack(redis_url, local, say=say, queue=queue)


async def answer(
    stack: Stack,
    source: InputFile,
    journal: Journal,
    options: RunOptions,
    client_options: ClientOptions | None = None,
    *,
    models: Mapping[str, int] = MappingProxyType({}),
    price_per_hour: float | None = None,
) -> Summary:
    """Run the batch with its progress on the screen. Raises what BatchRun and Stack raise, and InvalidRequest
    where `models`, which the lines name, are queues that the server does not have."""
    options = replace(options, queue=options.queue or stack.queue)  # its own worker is for all lines
    if options.queue is None and stack.url != NO_SERVER:
        await check_queues(stack, models)
    async with AsyncClient(stack.url, options=client_options) as client:
        batch = BatchRun(source, journal, client, options)
        return await stack.guard(_shown(stack, Shown(batch, price_per_hour)))


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


async def _shown(stack: Stack, shown: Shown) -> Summary:
    await load_model(stack)
    watched = beside(show_progress(shown), shown.run.run())
    return await beside(_warn_of_waiting(stack, shown.run), watched)


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


def _check_apart(source: Path, out: Path) -> None:
    journal = Journal(out)
    try:
        for path in (journal.out, journal.errors, journal.run_file):
            if path.exists() and source.exists() and path.samefile(source):
                raise InvalidRequest("--output", str(out), f"{path} is the input; choose another file")
    except OSError as error:  # a name that no file can have
        raise InvalidRequest("--output", str(error.filename or out), str(error.strerror)) from error
