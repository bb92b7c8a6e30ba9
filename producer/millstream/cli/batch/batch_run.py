"""Carries out one `millstream batch run` with parsed options: survey, server, worker, run, summary."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.batch.batch_session import BatchSession
from millstream.batch.files.journal import Journal
from millstream.batch.input_comparison import Survey
from millstream.batch.line_queues import queues_of, read_contexts
from millstream.batch.run.run_options import RunOptions
from millstream.batch.run.tally import Summary
from millstream.cli.batch.batch_cancel import say_what_stays, settle_interrupt
from millstream.cli.batch.batch_files import STANDARD, spooled
from millstream.cli.batch.batch_watch import watched
from millstream.cli.batch.line_warnings import say_tokens, say_who_answers, warn_of_fields, warn_of_long_lines
from millstream.cli.display.batch_progress import Shown
from millstream.cli.display.batch_summary import as_mapping, print_summary, say_causes
from millstream.cli.display.terminal import counted, print_json, say, warn
from millstream.cli.embedded.stack import LocalModel, Stack, open_stack
from millstream.cli.shared.command_run import load_model
from millstream.cli.shared.interrupts import run_async
from millstream.client.async_client import AsyncClient
from millstream.client.session.options import ClientOptions
from millstream.errors import MillstreamError
from millstream.openai.request_body import DEFAULT_QUEUE

NO_SERVER = "unix:///dev/null"  # for a run that sends nothing


@dataclass(frozen=True, slots=True)
class Given:
    """The parsed arguments. `local`: the model of the command's own worker, if it has one."""

    source: Path
    redis_url: str | None
    local: LocalModel | None
    options: RunOptions
    client: ClientOptions
    price_per_hour: float | None = None
    cancel_on_interrupt: bool = False


def carry_out(given: Given, journal: Journal) -> Summary:
    """Raises what `BatchSession.compare`, BatchRun and Stack raise, and KeyboardInterrupt."""
    from_stdin = given.source == STANDARD
    lines = spooled(journal) if from_stdin else given.source
    session = BatchSession(lines, journal, given.options, named=str(STANDARD) if from_stdin else "")
    if given.redis_url and journal.notes.models:
        run_async(_read_models(session, given.redis_url))
    _say_what_was_found(given, journal, session.compare())
    with _stack(given, session.survey) as stack:
        work = answer(stack, session, given.client, price_per_hour=given.price_per_hour)
        summary = _finished(work, stack, journal, given)
    journal.finish()
    if from_stdin:
        journal.spool.unlink(missing_ok=True)
    return summary


async def _read_models(session: BatchSession, redis_url: str) -> None:
    async with AsyncClient(redis_url) as client:
        await session.read_models(client)


def _say_what_was_found(given: Given, journal: Journal, survey: Survey) -> None:
    if survey.missing:
        answer_lines = "answers a line" if survey.missing == 1 else "answer lines"
        say(f"{counted(survey.missing, 'row')} of {journal.out} {answer_lines} that IN no longer has")
    if survey.mended:
        has, are = ("has", "is") if len(survey.mended) == 1 else ("have", "are")
        lines = counted(len(survey.mended), "line")
        say(f"{lines} that could not be run {has} changed, and {are} tried again")
    if given.options.retry_failed or given.options.retry_incomplete:
        say(f"trying {counted(len(survey.retried), 'line')} again")
    warn_of_fields(survey.findings)
    say_tokens(survey.findings)
    if not survey.lines:
        warn(f"{given.source} has no lines; there is nothing to do")


def _stack(given: Given, survey: Survey) -> AbstractContextManager[Stack]:
    """A server, and a worker of the command's own only if there is work for it."""
    queue = given.options.queue or DEFAULT_QUEUE
    if given.local is not None:
        if not survey.work:
            return nullcontext(Stack(NO_SERVER))
        say_who_answers(survey.models, given.local.name, queue)
    return open_stack(given.redis_url, given.local, queue=queue)


def _finished(work: Coroutine[Any, Any, Summary], stack: Stack, journal: Journal, given: Given) -> Summary:
    try:
        return run_async(work)
    except KeyboardInterrupt:
        settle_interrupt(stack, journal, given.redis_url, at_once=given.cancel_on_interrupt)
        raise
    except (MillstreamError, OSError):  # OSError: standard output was closed
        say_what_stays(stack, journal, given.redis_url)
        raise


async def answer(
    stack: Stack,
    session: BatchSession,
    client_options: ClientOptions | None = None,
    *,
    price_per_hour: float | None = None,
) -> Summary:
    """Run the batch, which was compared, with its progress on the screen. Raises what BatchRun and Stack
    raise, and InvalidRequest if its lines name queues that the server does not have.
    """
    async with AsyncClient(stack.url, options=client_options) as client:
        if stack.url == NO_SERVER:
            session.prepare_files()
        else:
            done = await session.prepare(client)
            if count := done.cancelled + done.running:
                jobs, were = counted(count, "job"), "was" if count == 1 else "were"
                say(f"{jobs} of an earlier run that no line of IN asks for now {were} cancelled")
        session.journal.replay()
        with session.running(client) as batch:
            await stack.guard(_know_model(stack, client, session))
            shown = Shown(batch, price_per_hour)
            return await stack.guard(watched(stack, shown, client, session.options.lane))


async def _know_model(stack: Stack, client: AsyncClient, session: BatchSession) -> None:
    """Wait for the command's own worker, and tell of lines that are too long for the model of any."""
    if stack.url == NO_SERVER:
        return
    await load_model(stack)
    survey, queue = session.survey, session.options.queue
    contexts = await read_contexts(client, queues_of(survey.models, queue))
    warn_of_long_lines(survey.findings, contexts, queue)


def report(summary: Summary, journal: Journal, price_per_hour: float | None, *, as_json: bool) -> None:
    say_causes(summary, journal)
    if summary.deprecated_fields:
        names = _counted(summary.deprecated_fields)
        warn(f"older fields were taken as structured_outputs, in so many lines: {names}")
    if summary.not_durable:
        jobs, were = counted(summary.not_durable, "job"), "was" if summary.not_durable == 1 else "were"
        warn(f"{jobs} {were} queued, but not as durable in time as --durability asks")
    if as_json:
        print_json(as_mapping(summary, journal, price_per_hour))
    else:
        print_summary(summary, journal, price_per_hour)


def _counted(names: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in names[:10])
