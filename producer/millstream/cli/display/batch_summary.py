"""A batch run's summary: aligned lines for people, a mapping for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millstream.batch.files.journal import Journal
from millstream.batch.run.tally import Percentiles, Summary
from millstream.cli.display.batch_progress import money, rate, span, told_groups
from millstream.cli.display.terminal import answers, plain, say

MOST_CAUSES = 5  # printed in words
MAX_CAUSE = 300  # characters


def as_mapping(summary: Summary, journal: Journal, price_per_hour: float | None) -> dict[str, Any]:
    """JSON-ready; ops/pages/batch.md lists the fields. None if nothing was measured."""
    rows, tokens = _costs(summary, price_per_hour)
    fields = asdict(summary)
    del fields["work"], fields["spent"]
    return fields | {
        "earlier_seconds": round(summary.spent.seconds - summary.seconds, 3),
        "unknown_fields": dict(summary.unknown_fields),
        "deprecated_fields": dict(summary.deprecated_fields),
        "causes": [{"count": cause.count, "text": cause.text} for cause in summary.causes[:MOST_CAUSES]],
        "rows_per_second": round(summary.rows_per_second, 3),
        "prompt_tokens_per_second": round(summary.prompt_tokens_per_second, 3),
        "output_tokens_per_second": round(summary.output_tokens_per_second, 3),
        "cost_per_thousand_rows": rows,
        "cost_per_million_tokens": tokens,
        "output": str(journal.out),
        "errors": str(journal.errors),
    }


def print_summary(summary: Summary, journal: Journal, price_per_hour: float | None) -> None:
    more = "--retry-failed tries these lines again" if journal.errors.stat().st_size else "none"
    if summary.incomplete or journal.cut:
        more += ", --retry-incomplete those whose answers were cut"
    lines = _lines(summary, price_per_hour)
    lines += [("answers", str(journal.out)), ("errors", f"{journal.errors} ({more})")]
    for name, text in lines:  # no table: it would break a long path in two
        answers.out(f"{name:<10}{text}")


def say_causes(summary: Summary, journal: Journal) -> None:
    """Print the most frequent reasons of this run's error rows."""
    for cause in summary.causes[:MOST_CAUSES]:
        text = plain(cause.text)
        shown = text if len(text) <= MAX_CAUSE else f"{text[: MAX_CAUSE - 1]}…"
        say(f"{cause.count:,} × {shown}" + ("" if cause.alike else " (the first of them)"))
    if left := sum(cause.count for cause in summary.causes[MOST_CAUSES:]):
        say(f"{left:,} × other errors: {journal.errors}")


def _lines(summary: Summary, price_per_hour: float | None) -> list[tuple[str, str]]:
    lines = [("lines", _counts(summary))]
    if summary.completed:
        share = summary.cached_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
        cached = f"{summary.cached_tokens:,} of them cached ({share:.0%})"
        lines += [
            ("time", _time(summary)),
            ("prompt", f"{summary.prompt_tokens:,} tokens, {cached}"),
            ("output", f"{summary.output_tokens:,} tokens"),
            ("speed", _speeds(summary)),
        ]
    if summary.groups and summary.completed > summary.reused:  # lines were sent
        lines.insert(1, ("groups", told_groups(summary.groups, summary.shared_tokens)))
    if summary.reused:
        lines.insert(1, ("reused", f"{summary.reused:,} of them have the answers of equal lines"))
    for name, values in (("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms)):
        if values is not None:
            lines.append((name, _percentiles(values)))
    units = zip(_costs(summary, price_per_hour), ("1,000 rows", "million output tokens"), strict=True)
    if costs := [f"{money(price)} per {unit}" for price, unit in units if price is not None]:
        lines.append(("cost", f"{', '.join(costs)}, at {price_per_hour:g} per hour"))
    if summary.expected:
        lines.append(
            ("expected", f"{summary.agreed:,} of {summary.expected:,} answers are the expected ones")
        )
    return lines


def _counts(summary: Summary) -> str:
    done = f"{summary.completed:,} completed, {summary.failed:,} failed"
    if summary.skipped:
        done += f", {summary.skipped:,} answered before"
    if summary.skipped_failed:
        done += f", {summary.skipped_failed:,} of them failed"
    return done


def _speeds(summary: Summary) -> str:
    rows, prompt = f"{rate(summary.rows_per_second)} rows/s", rate(summary.prompt_tokens_per_second)
    output = rate(summary.output_tokens_per_second)
    if summary.work.rows != summary.completed:
        rows += f" ({summary.work.rows:,} computed)"
    return f"{rows}, {prompt} prompt tokens/s, {output} output tokens/s"


def _costs(summary: Summary, price_per_hour: float | None) -> tuple[float | None, float | None]:
    """The cost of 1,000 rows, and of a million output tokens."""
    if price_per_hour is None:
        return None, None
    return summary.cost_per_thousand_rows(price_per_hour), summary.cost_per_million_tokens(price_per_hour)


def _time(summary: Summary) -> str:
    earlier_s = summary.spent.seconds - summary.seconds
    return _wall(summary.seconds) + (f", and {_wall(earlier_s)} in earlier runs" if earlier_s else "")


def _wall(seconds: float) -> str:
    return span(seconds) if seconds >= 60 else f"{seconds:.1f} s"


def _percentiles(values: Percentiles) -> str:
    ranks = (("P50", values.p50), ("P95", values.p95), ("P99", values.p99))
    return "   ".join(f"{name} {_duration(ms)}" for name, ms in ranks)


def _duration(ms: float) -> str:
    """With three digits."""
    return f"{rate(ms / 1000)} s" if ms >= 999.5 else f"{ms:.3g} ms"
