"""A batch run's summary: as aligned lines for people, as a mapping for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from millstream.batch.journal import Journal
from millstream.batch.tally import Percentiles, Summary
from millstream.cli.terminal import answers


def as_mapping(summary: Summary, journal: Journal, price_per_hour: float | None) -> dict[str, Any]:
    """JSON-ready; times in milliseconds, None where there was nothing to measure."""
    return asdict(summary) | {
        "unknown_fields": dict(summary.unknown_fields),
        "tokens_per_second": round(summary.tokens_per_second, 3),
        "cost_per_million_tokens": None
        if price_per_hour is None
        else summary.cost_per_million(price_per_hour),
        "output": str(journal.out),
        "errors": str(journal.errors),
    }


def print_summary(summary: Summary, journal: Journal, price_per_hour: float | None) -> None:
    more = "--retry-failed tries these lines again" if journal.errors.stat().st_size else "none"
    lines = _lines(summary, price_per_hour)
    lines += [("answers", str(journal.out)), ("errors", f"{journal.errors} ({more})")]
    for name, text in lines:  # no table: it would break a long path in two
        answers.out(f"{name:<10}{text}")


def _lines(summary: Summary, price_per_hour: float | None) -> list[tuple[str, str]]:
    done = f"{summary.completed:,} completed, {summary.failed:,} failed"
    if summary.skipped:
        done += f", {summary.skipped:,} answered before"
    lines = [("lines", done)]
    if summary.completed:
        share = summary.cached_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
        lines += [
            (
                "prompt",
                f"{summary.prompt_tokens:,} tokens, {summary.cached_tokens:,} of them cached ({share:.0%})",
            ),
            ("output", f"{summary.output_tokens:,} tokens in {summary.seconds:.1f} s"),
            ("speed", f"{summary.tokens_per_second:,.1f} output tokens/s"),
        ]
    for name, values in (("TTFT", summary.ttft_ms), ("TPOT", summary.tpot_ms)):
        if values is not None:
            lines.append((name, _percentiles(values)))
    if price_per_hour is not None and (cost := summary.cost_per_million(price_per_hour)) is not None:
        lines.append(("cost", f"{cost:,.2f} per million output tokens, at {price_per_hour:g} per hour"))
    if summary.expected:
        lines.append(
            ("expected", f"{summary.agreed:,} of {summary.expected:,} answers are the expected ones")
        )
    return lines


def _percentiles(values: Percentiles) -> str:
    return f"P50 {values.p50:,.1f} ms   P95 {values.p95:,.1f} ms   P99 {values.p99:,.1f} ms"
