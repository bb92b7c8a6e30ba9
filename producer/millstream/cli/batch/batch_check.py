"""`millstream batch check`: what a run of a file would say of its lines, without running any."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from millstream.batch.files.input_file import InputFile
from millstream.batch.input_check import InputCheck
from millstream.batch.input_comparison import refuse_unknown
from millstream.batch.line_counts import LineCounts
from millstream.batch.line_queues import check_queues, queues_of, read_contexts
from millstream.batch.media.media_folder import MediaFolder
from millstream.batch.run.run_options import RunOptions
from millstream.cli.batch.batch_files import STANDARD, spool
from millstream.cli.batch.line_warnings import told_output, warn_of_fields, warn_of_long_lines
from millstream.cli.display.terminal import answers, counted, plain, print_json, warn
from millstream.cli.embedded.stack import Stack
from millstream.cli.shared.command_run import reported, warn_of_no_worker
from millstream.cli.shared.exits import ExitCode
from millstream.cli.shared.interrupts import run_async
from millstream.cli.shared.schema_file import openai_schema
from millstream.cli.shared.shared_options import AsJson, Input, LineSchema, Media, StrictFields
from millstream.client.async_client import AsyncClient
from millstream.errors import MillstreamError
from millstream.wire.keys import Lane

SERVER_HELP = "The server of the queues, whose workers count the prompts. Without one they are estimated."


@dataclass(frozen=True, slots=True)
class Told:
    """Answers of a server. `contexts`: most tokens of a request, by queue; `tokens` of all prompts that can
    run; None: not all could be counted.
    """

    contexts: Mapping[str, int] = field(default_factory=dict)
    tokens: int | None = None


def check(
    source: Input,
    redis_url: Annotated[
        str | None, typer.Option("--redis-url", envvar="MILLSTREAM_REDIS_URL", help=SERVER_HELP)
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="The queue of all lines, as given to `batch run`.")
    ] = None,
    lane: Annotated[Lane, typer.Option(help="The lane of the run.")] = Lane.BATCH,
    tenant: Annotated[str, typer.Option(help="The tenant of the run.")] = "",
    schema: LineSchema = None,
    media: Media = None,
    strict_fields: StrictFields = False,
    as_json: AsJson = False,
) -> None:
    """Check every line of IN before a run: exit code 0 if all of them can run, 2 if not.

    Prints the first lines that cannot run, the tokens of the prompts, and the most that the answers may have.
    """
    with reported(as_json, lambda: "interrupted"), ExitStack() as stack:
        options = RunOptions(
            queue=queue,
            lane=lane,
            tenant=tenant,
            response_format=None if schema is None else openai_schema(schema),
            media=None if media is None else MediaFolder.of(media),
            strict_fields=strict_fields,
        )
        path = _kept(source, stack)
        found = InputCheck(options)
        with InputFile(path) as lines:
            found.take(lines, str(source))
        told = Told()
        try:
            if redis_url:
                told = run_async(_ask(redis_url, path, found, options))
        finally:  # what was found without the server is told in any case
            _tell(found, told, options, as_json=as_json)
        if not found.lines:
            warn(f"{source} has no lines; there is nothing to do")
        if strict_fields:
            refuse_unknown(found.findings, str(source))
    if found.bad:
        raise typer.Exit(ExitCode.USAGE)


def _kept(source: Path, stack: ExitStack) -> Path:
    """A file that can be read more than once."""
    if source != STANDARD:
        return source
    copy = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "standard-input"
    spool(sys.stdin.buffer, copy)
    return copy


async def _ask(url: str, path: Path, found: InputCheck, options: RunOptions) -> Told:
    """Raises InvalidRequest if lines name queues that the server does not have, and Unavailable."""
    async with AsyncClient(url) as client:
        if options.queue is None:
            await check_queues(client, found.models)
        contexts = await read_contexts(client, queues_of(found.models, options.queue))
        counts = LineCounts(client, found, options)
        await counts.take(path)
    for queue in sorted(counts.estimated):
        with contextlib.suppress(MillstreamError):  # not readable: "estimated" is said in any case
            stack = Stack(url)
            if not await stack.has_worker(queue):
                warn_of_no_worker(queue, await stack.loading(queue), "its prompts are estimated")
    return Told(contexts, None if counts.estimated else counts.tokens)


def _tell(found: InputCheck, told: Told, options: RunOptions, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_mapping(found, told, options))
        return
    warn_of_fields(found.findings, strict=options.strict_fields)
    if told.tokens is None:
        warn_of_long_lines(found.findings, told.contexts, options.queue)
    _print(found, told)


def _print(found: InputCheck, told: Told) -> None:
    for bad in found.shown:
        answers.out(f"line {bad.line}: {plain(bad.message)}")
    if more := found.bad - len(found.shown):
        answers.out(f"and {counted(more, 'more line')}")
    answers.out(f"{'lines':<10}{found.lines - found.bad:,} can run, {found.bad:,} cannot")
    prompts = (
        f"about {found.findings.prompt_tokens:,} tokens (estimated)"
        if told.tokens is None
        else f"{told.tokens:,} tokens"
    )
    answers.out(f"{'prompts':<10}{prompts}")
    answers.out(f"{'output':<10}{told_output(found.findings)}")


def _as_mapping(found: InputCheck, told: Told, options: RunOptions) -> dict[str, Any]:
    """JSON-ready; ops/pages/batch.md lists the fields."""
    counted = told.tokens is not None
    return {
        "lines": found.lines,
        "bad": found.bad,
        "faults": [
            {"line": bad.line, "code": bad.code, "message": bad.message, "param": bad.field}
            for bad in found.shown
        ],
        "unknown_fields": dict(found.findings.unread.most_common()),
        "without_max_tokens": found.findings.unbounded,
        "prompt_tokens": found.findings.prompt_tokens if told.tokens is None else told.tokens,
        "estimated": not counted,
        "most_output_tokens": None if found.findings.unbounded else found.findings.output_tokens,
        "perhaps_too_long": 0 if counted else found.findings.too_long(told.contexts, options.queue),
    }
