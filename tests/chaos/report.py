"""The table of a run, as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from chaos.campaign import Outcome
from chaos.marks import REPEATED

SHOWN = 25  # violations printed


def text(outcomes: Sequence[Outcome], command: str) -> str:
    lines = [command, "", *_faults(outcomes), "", *_scenarios(outcomes), "", *_totals(outcomes)]
    missed = [line for outcome in outcomes for line in outcome.missed]
    if missed:
        lines += ["", f"faults that could not be brought about: {len(missed)}", *sorted(set(missed))[:10]]
    violations = [f"{o.scenario}/{o.server} {v}" for o in outcomes for v in o.violations]
    lines += ["", f"violations: {len(violations)}", *violations[:SHOWN]]
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], command: str) -> str:
    return json.dumps({"command": command, "scenarios": [_row(outcome) for outcome in outcomes]}, indent=1)


def _faults(outcomes: Sequence[Outcome]) -> list[str]:
    injected: Counter[str] = Counter()
    for outcome in outcomes:
        injected.update(outcome.injected)
    width = max((len(name) for name in injected), default=10)
    rows = [f"{name:<{width}}  {count:>5}" for name, count in sorted(injected.items())]
    return [f"{'fault':<{width}}  {'times':>5}", *rows, f"{'all':<{width}}  {injected.total():>5}"]


def _scenarios(outcomes: Sequence[Outcome]) -> list[str]:
    header = (
        f"{'scenario':<18} {'faults':>6} {'jobs':>6} {'lost':>5} {'dup':>4} {'wrong':>5} {'streams':>8} "
        f"{'broken':>6} {'p50':>6} {'p95':>6} {'max':>6} {'violations':>10} {'s':>5}"
    )
    return [header, *(_line(outcome) for outcome in outcomes)]


def _line(outcome: Outcome) -> str:
    row = _row(outcome)
    p50, p95, most = (f"{value:6.2f}" if value is not None else "     –" for value in row["recovery_s"])
    short = "" if outcome.reached else "  (stopped short by its time)"
    return (
        f"{outcome.scenario + '/' + outcome.server:<18} {row['faults']:>6} {row['jobs']:>6} {row['lost']:>5} "
        f"{row['duplicated']:>4} {row['wrong']:>5} {row['streams'].get('complete', 0):>8} "
        f"{row['streams'].get('broken', 0):>6} {p50} {p95} {most} {len(outcome.violations):>10} "
        f"{outcome.seconds:>5.0f}{short}"
    )


def _totals(outcomes: Sequence[Outcome]) -> list[str]:
    states: Counter[str] = Counter()
    streams: Counter[str] = Counter()
    attempts: Counter[int] = Counter()
    tokens: Counter[str] = Counter()
    for outcome in outcomes:
        states.update({str(state): count for state, count in outcome.states.items()})
        streams.update(outcome.streams)
        attempts.update(outcome.attempts)
        tokens.update(outcome.tokens)
    recovery = [value for outcome in outcomes for value in outcome.recovery_s]
    takeover = [value for outcome in outcomes for value in outcome.takeover_s]
    cancel = [value for outcome in outcomes for value in outcome.cancel_s]
    return [
        f"jobs     {sum(o.jobs for o in outcomes)} ({_counts(states)}); "
        f"forgotten with their server, or possibly: {sum(o.excused for o in outcomes)}",
        f"attempts {_counts(attempts)}",
        f"grammars {sum(o.formatted for o in outcomes)} jobs; {tokens['masked_rows_total']} tokens sampled "
        f"under them, {tokens['forced_total']} forced",
        f"drafts   {tokens['drafted_total']} verified, {tokens['accepted_total']} accepted",
        f"streams  {streams.total()} ({_counts(streams)})",
        f"seconds from a fault to the next token or end:         {_spread(recovery)}",
        f"seconds from a worker's death to its jobs' next start: {_spread(takeover)}",
        f"seconds from a running job's cancel to its end:        {_spread(cancel)}",
    ]


def _row(outcome: Outcome) -> dict[str, Any]:
    kinds = Counter(violation.kind for violation in outcome.violations)
    repeated = sum(REPEATED in violation.what for violation in outcome.violations)
    return {
        "scenario": outcome.scenario,
        "server": outcome.server,
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "faults": outcome.injected.total(),
        "injected": dict(outcome.injected),
        "missed": outcome.missed,
        "jobs": outcome.jobs,
        "excused": outcome.excused,
        "lost": kinds["lost"] + kinds["unended"],
        "duplicated": repeated,
        "wrong": kinds["result"] + kinds["told"],
        "states": {str(state): count for state, count in outcome.states.items()},
        "attempts": dict(outcome.attempts),
        "streams": dict(outcome.streams),
        "formatted": outcome.formatted,
        "tokens": dict(outcome.tokens),
        "recovery_s": percentiles(outcome.recovery_s),
        "takeover_s": percentiles(outcome.takeover_s),
        "cancel_s": percentiles(outcome.cancel_s),
        "violations": [str(violation) for violation in outcome.violations],
        "reached": outcome.reached,
    }


def percentiles(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """P50, P95, the most."""
    if not values:
        return None, None, None
    ordered = sorted(values)
    last = len(ordered) - 1
    return ordered[round(0.5 * last)], ordered[round(0.95 * last)], ordered[-1]


def _spread(values: Sequence[float]) -> str:
    p50, p95, most = percentiles(values)
    return "–" if p50 is None else f"P50 {p50:.2f}  P95 {p95:.2f}  max {most:.2f}  ({len(values)})"


def _counts(counter: Counter[Any]) -> str:
    return ", ".join(
        f"{name}: {count}" for name, count in sorted(counter.items(), key=lambda one: str(one[0]))
    )
