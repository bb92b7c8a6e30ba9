"""Tells what the lines of a batch ask for that nobody may have meant, before their first job."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.batch.line_queues import listed
from millstream.batch.rows.line_findings import LineFindings
from millstream.cli.display.terminal import counted, say, warn


def warn_of_fields(findings: LineFindings, *, strict: bool = False) -> None:
    """`strict`: unknown fields are an error, which is reported elsewhere."""
    if (not strict or not findings.told_unread(unknown_only=True)) and (told := findings.told_unread()):
        warn(f"fields that nothing reads: {told}")
    if count := findings.unbounded:
        goes = "its answer may go" if count == 1 else "their answers may go"
        have = counted(count, "line has", "lines have")
        warn(f"{have} no max_tokens: {goes} on to the end of the model's context")


def say_tokens(findings: LineFindings) -> None:
    """Tell how much there is to compute, as far as it is known."""
    if findings.lines:
        prompts = f"about {findings.prompt_tokens:,} prompt tokens (estimated)"
        say(f"{counted(findings.lines, 'line')} to run: {prompts}, {told_output(findings)}")


def told_output(findings: LineFindings) -> str:
    most = f"at most {findings.output_tokens:,} output tokens"
    if not findings.unbounded:
        return most
    unbounded = counted(findings.unbounded, "line without one", "lines without a bound")
    return f"{most} and those of {unbounded}" if findings.output_tokens else "output tokens without a bound"


def warn_of_long_lines(findings: LineFindings, contexts: Mapping[str, int], queue: str | None) -> None:
    """`contexts`: most tokens of a request with its answer, by queue; `queue`: the one of all lines."""
    if count := findings.too_long(contexts, queue):
        held = " or ".join(f"{tokens:,}" for tokens in sorted(set(contexts.values())))
        warn(
            f"{counted(count, 'line')} may be too long for the model (estimated): it holds {held} tokens, "
            "input and output together"
        )


def say_who_answers(models: Mapping[str, int], model: str, queue: str) -> None:
    """Report the other names, if there are any."""
    others = {name: count for name, count in models.items() if name not in ("", model, queue)}
    if others:
        say(f"body.model {listed(others)}: answered by {model}, which answers all lines of this run")
