"""The tables of a report, as markdown that is also readable on a terminal of 120 columns."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from ops.bench.engines.results import Comparison, Measured, Report
from ops.bench.measures import Run, best

_NONE = "–"
_HEAD = (
    "engine", "out/s (worst)", "all/s", "TTFT s 50/95/99", "TPOT ms 50/95/99", "GiB", "MBU", "MFU",
    "limit", "ours",
)  # fmt: skip
_SUMMARY_HEAD = ("engine", "out/s, geometric mean", "lowest", "peak memory, highest")


def text(report: Report) -> str:
    """The whole report."""
    tables = [table(comparison, report) for comparison in report.comparisons]
    return "\n\n".join([head(report), *tables, *summary(report.comparisons)])


def head(report: Report) -> str:
    """The machine and the conditions of the measurement."""
    versions = ", ".join(f"{engine} {version}" for engine, version in report.versions.items())
    lines = [
        f"{report.date}, commit {report.commit}, {report.machine}, {report.threads} threads; "
        f"{report.limits}; load at the start {report.load:.1f}",
        f"`{report.command}`",
        versions,
        *(_loaded(model, seconds) for model, seconds in report.loads.items()),
        *(f"{engine}: {why}" for engine, why in report.absent.items()),
        "All requests arrive at once: TTFT includes the wait for a place in the batch. "
        "Of several runs the fastest, and beside it the slowest's rate.",
    ]
    return "\n\n".join(line for line in lines if line)


def _loaded(model: str, seconds: dict[str, float]) -> str:
    each = ", ".join(f"{engine} {took:.1f} s" for engine, took in seconds.items())
    return f"{model} was loaded, from imports to ready: {each}"


def table(comparison: Comparison, report: Report) -> str:
    """A title with the limit, and a row per engine. `ours`: how many times as fast the first engine is."""
    work, limits = comparison.work, report.limits
    runs = [engine.best for engine in comparison.engines]
    tokens = next((run.output_tokens for run in runs if run), 0)
    least_s = work.least_s(limits)
    title = (
        f"### {comparison.model}, {comparison.workload.upper()} {comparison.what}: at most "
        f"{tokens / least_s:,.0f} output tokens/s\n\n"
        f"{work.flops / 1e12:,.2f} TFLOP, {work.rounds} steps of {work.weight_bytes / 1e6:,.0f} MB of "
        f"weights, {work.kv_bytes / 1e9:,.2f} GB of keys and values: {least_s:,.2f} s"
    )
    rows = [
        _row(engine.engine, engine.runs, comparison, report, runs[0])
        for engine in comparison.engines
        if engine.runs
    ]
    problems = [f"{engine.engine}: {engine.problem}" for engine in comparison.engines if engine.problem]
    return "\n\n".join([title, _markdown([_HEAD, *rows]), *problems])


def summary(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Over all workloads of each model: the first engine beside each of the others."""
    for model in dict.fromkeys(comparison.model for comparison in comparisons):
        own = [comparison for comparison in comparisons if comparison.model == model]
        ours, *others = zip(*(comparison.engines for comparison in own), strict=True)
        names = [comparison.workload for comparison in own]
        rows = [row for other in others if (row := _beside(names, ours, other))]
        if rows:
            title = f"### {model}: {ours[0].engine} over each of the others, all workloads"
            yield f"{title}\n\n{_markdown([_SUMMARY_HEAD, *rows])}"


def _beside(names: Sequence[str], ours: Sequence[Measured], other: Sequence[Measured]) -> Sequence[str]:
    """Of the workloads that both have run; empty if there is none."""
    pairs = [(a.best, b.best, name) for a, b, name in zip(ours, other, names, strict=True)]
    both = [(a, b, name) for a, b, name in pairs if a and b]
    if not both:
        return ()
    rates = [(a.tokens_s / b.tokens_s, name) for a, b, name in both]
    lowest, where = min(rates)
    memory = max(a.peak_bytes / b.peak_bytes for a, b, _ in both)
    mean = statistics.geometric_mean(rate for rate, _ in rates)
    return (other[0].engine, f"{mean:.3f}", f"{lowest:.3f} ({where})", f"{memory:.2f}x")


def _row(
    engine: str, runs: Sequence[Run], comparison: Comparison, report: Report, ours: Run | None
) -> Sequence[str]:
    run, worst = best(runs), min(one.tokens_s for one in runs)
    work, limits = comparison.work, report.limits
    return (
        engine,
        f"{run.tokens_s:,.0f}" + (f" ({worst:,.0f})" if len(runs) > 1 else ""),
        f"{run.tokens_s + comparison.prompt_tokens / run.seconds:,.0f}",
        _spread(run.ttft_s(), 1.0),
        _spread(run.tpot_s(), 1e3),
        f"{run.peak_bytes / 2**30:.2f}",
        f"{work.mbu(run.steps, run.seconds, limits):.0%}" if run.steps else _NONE,
        f"{work.mfu(run.seconds, limits):.0%}",
        f"{work.least_s(limits) / run.seconds:.0%}",
        f"{ours.tokens_s / run.tokens_s:.2f}x" if ours else _NONE,
    )


def _spread(values: Iterable[float], unit: float) -> str:
    return "/".join(_three_digits(value * unit) for value in values) or _NONE


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Cells padded to the widest of their column; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        for row in (rows[0], ["-" * width for width in widths], *rows[1:])
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)
