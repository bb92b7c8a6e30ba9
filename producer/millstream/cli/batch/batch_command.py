"""`millstream batch run`: a JSONL file of requests in, files of answers and errors out."""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from millstream.batch.files.journal import Journal
from millstream.batch.media.media_folder import DEFAULT_DPI, MediaFolder, PageFormat
from millstream.batch.run.model_watch import OnChange
from millstream.batch.run.run_options import DEFAULT_WINDOW, RunOptions
from millstream.cli.batch.batch_cancel import cancel
from millstream.cli.batch.batch_check import check
from millstream.cli.batch.batch_files import STANDARD, check_input, place_of
from millstream.cli.batch.batch_pages import pages
from millstream.cli.batch.batch_run import Given, carry_out, report
from millstream.cli.embedded.stack import choose_model
from millstream.cli.shared.command_run import reported
from millstream.cli.shared.exits import ExitCode
from millstream.cli.shared.help import HelpCommand, HelpGroup
from millstream.cli.shared.schema_file import openai_schema
from millstream.cli.shared.shared_options import (
    AsJson,
    DurabilityOf,
    DurabilityTimeout,
    Input,
    LineSchema,
    Media,
    Model,
    PageFormatOf,
    PdfDpi,
    RedisUrl,
    Replicas,
    StrictFields,
)
from millstream.client.session.options import ClientOptions
from millstream.errors import InvalidRequest
from millstream.openai.request_body import DEFAULT_QUEUE
from millstream.wire.keys import Lane
from millstream.wire.state.durability import Durability

app = typer.Typer(cls=HelpGroup, help="Files of many requests.", no_args_is_help=True)


@app.callback()
def _batch() -> None:
    """Files of many requests."""


@app.command(cls=HelpCommand)
def run(
    source: Input,
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where the answers go.")],
    redis_url: RedisUrl = None,
    model: Model = None,
    queue: Annotated[
        str | None, typer.Option(help="Send all lines to this queue, whatever their body.model says.")
    ] = None,
    window: Annotated[int, typer.Option(help="Jobs under way at once.")] = DEFAULT_WINDOW,
    lane: Annotated[Lane, typer.Option(help="Workers serve interactive before batch.")] = Lane.BATCH,
    tenant: Annotated[str, typer.Option(help="Fairness and cached prefixes are per tenant.")] = "",
    schema: LineSchema = None,
    media: Media = None,
    pdf_dpi: PdfDpi = DEFAULT_DPI,
    page_format: PageFormatOf = PageFormat.PNG,
    journal_file: Annotated[
        Path | None,
        typer.Option("--journal", metavar="FILE", help="With -o -: file that keeps the run's rows."),
    ] = None,
    redo_changed: Annotated[bool, typer.Option("--redo-changed", help="Answer changed lines again.")] = False,
    keep_answers: Annotated[
        bool, typer.Option("--keep-answers", help="Keep the answers of changed lines.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try the lines of the error file again.")
    ] = False,
    retry_incomplete: Annotated[
        bool, typer.Option("--retry-incomplete", help="Try those again whose answers were cut.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are error rows.")] = False,
    strict_fields: StrictFields = False,
    price_per_hour: Annotated[
        float | None,
        typer.Option(min=0, metavar="PRICE", help="Price of the hardware; adds the cost of rows and tokens."),
    ] = None,
    cancel_on_interrupt: Annotated[
        bool, typer.Option("--cancel-on-interrupt", help="Cancel the run's jobs at the first Ctrl-C.")
    ] = False,
    keep_results: Annotated[
        bool, typer.Option("--keep-results", help="Leave results on the server after their rows are on disk.")
    ] = False,
    in_order: Annotated[
        bool,
        typer.Option("--in-order", help="Send lines in IN's order, not those that begin alike together."),
    ] = False,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Compute equal lines each by itself.")] = False,
    durability: DurabilityOf = Durability.NONE,
    replicas: Replicas = None,
    durability_timeout_s: DurabilityTimeout = 5.0,
    as_json: AsJson = False,
) -> None:
    """Answer every line of IN: answers to OUT, error rows to OUT without its ending + `.errors.jsonl`.

    Interrupted and started again with the same IN and OUT, it continues; nothing is computed twice. IN may be
    compressed (gzip, zstd) or `-`; OUT is compressed if its name ends in .gz or .zst, or is `-`. With
    --redis-url `body.model` names the queue; without it, and for "default", the default queue is used.
    Without --redis-url the command's own worker answers all lines, whatever their `body.model`.
    """
    copy = sys.stdout.buffer if out == STANDARD else None  # rows only: all else goes to standard error
    with (
        nullcontext() if copy is None else redirect_stdout(sys.stderr),
        reported(as_json, lambda: "interrupted; run the same command again to go on"),
    ):
        on_change = _on_change(redo=redo_changed, keep=keep_answers)
        if price_per_hour is not None and not isfinite(price_per_hour):
            raise InvalidRequest("--price-per-hour", price_per_hour, "must be a number, or be left out")
        place = place_of(out, journal_file)
        check_input(source, place)
        client = ClientOptions(
            durability=durability, durability_replicas=replicas, durability_timeout_s=durability_timeout_s
        )
        response_format = None if schema is None else openai_schema(schema)
        local = choose_model(redis_url or None, model)
        given = Given(
            source,
            redis_url or None,
            local,
            RunOptions(
                window=window,
                queue=queue or (DEFAULT_QUEUE if local else None),  # its own worker serves all lines
                lane=lane,
                tenant=tenant,
                keep_results=keep_results,
                on_change=on_change,
                retry_failed=retry_failed,
                retry_incomplete=retry_incomplete,
                strict_fields=strict_fields,
                in_order=in_order,
                reuse=not no_reuse,
                response_format=response_format,
                media=None if media is None else MediaFolder.of(media, pdf_dpi, page_format),
            ),
            client,
            price_per_hour,
            cancel_on_interrupt=cancel_on_interrupt,
        )
        with Journal(place, local.name if local else None, copy=copy) as journal:
            summary = carry_out(given, journal)
        report(summary, journal, price_per_hour, as_json=as_json)
    if summary.without_answers or (strict and journal.errors.stat().st_size):
        raise typer.Exit(ExitCode.FAILED)


app.command(cls=HelpCommand)(check)
app.command(cls=HelpCommand)(cancel)
app.command(cls=HelpCommand)(pages)


def _on_change(*, redo: bool, keep: bool) -> OnChange:
    if redo and keep:
        raise InvalidRequest("--redo-changed", True, "contradicts --keep-answers; give one of the two")
    return OnChange.REDO if redo else OnChange.KEEP if keep else OnChange.STOP
