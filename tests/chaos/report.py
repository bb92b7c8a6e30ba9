"""The table of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ops.bench.measures import percentiles

from chaos.campaign import Outcome
from chaos.marks import REPEATED

SHOWN = 25  # violations printed
RANKS = (50, 95, 100)


def text(outcomes: Sequence[Outcome], command: str) -> str:
    lines = [command, "", *_faults(outcomes), "", *_scenarios(outcomes), "", *_totals(outcomes)]
    missed = [line for outcome in outcomes for line in outcome.missed]
    if missed:
        lines += ["", f"faults that could not be brought about: {len(missed)}", *sorted(set(missed))[:10]]
    violations = [f"{o.scenario}/{o.server} {v}" for o in outcomes for v in o.violations]
    lines += ["", f"violations: {len(violations)}", *violations[:SHOWN]]
    return "\n".join(lines)


def _faults(outcomes: Sequence[Outcome]) -> list[str]:
    injected = _sum(outcomes, "injected")
    width = max((len(name) for name in injected), default=10)
    rows = [f"{name:<{width}}  {count:>5}" for name, count in sorted(injected.items())]
    return [f"{'fault':<{width}}  {'times':>5}", *rows, f"{'all':<{width}}  {injected.total():>5}"]


def _scenarios(outcomes: Sequence[Outcome]) -> list[str]:
    header = (
        f"{'scenario':<18} {'faults':>6} {'jobs':>6} {'lost':>5} {'dup':>4} {'wrong':>5} {'streams':>8} "
        f"{'broken':>6} {'p50':>6} {'p95':>6} {'max':>6} {'violations':>10} {'s':>5}"
    )
    return [header, *(_line(outcome) for outcome in outcomes)]


def _line(one: Outcome) -> str:
    kinds = Counter(violation.kind for violation in one.violations)
    repeated = sum(REPEATED in violation.what for violation in one.violations)
    spread = percentiles(one.recovery_s, RANKS) or ("–",) * 3
    recovery = " ".join(f"{value:>6.2f}" if isinstance(value, float) else f"{value:>6}" for value in spread)
    return (
        f"{one.scenario + '/' + one.server:<18} {one.injected.total():>6} {one.jobs:>6} "
        f"{kinds['lost'] + kinds['unended']:>5} {repeated:>4} {kinds['result'] + kinds['told']:>5} "
        f"{one.streams['complete']:>8} {one.streams['broken']:>6} {recovery} {len(one.violations):>10} "
        f"{one.seconds:>5.0f}{'' if one.reached else '  (stopped short by its time)'}"
    )


def _totals(outcomes: Sequence[Outcome]) -> list[str]:
    tokens, streams = _sum(outcomes, "tokens"), _sum(outcomes, "streams")
    return [
        f"jobs     {sum(o.jobs for o in outcomes)} ({_counts(_sum(outcomes, 'states'))}); "
        f"forgotten with their server, or possibly: {sum(o.excused for o in outcomes)}",
        f"attempts {_counts(_sum(outcomes, 'attempts'))}",
        f"grammars {sum(o.formatted for o in outcomes)} jobs; {tokens['masked_rows_total']} tokens sampled "
        f"under them, {tokens['forced_total']} forced",
        f"images   {sum(o.with_images for o in outcomes)} jobs",
        f"cached   {sum(o.cached for o in outcomes)} jobs, of those whose result somebody read",
        f"drafts   {tokens['drafted_total']} verified, {tokens['accepted_total']} accepted",
        f"streams  {streams.total()} ({_counts(streams)})",
        f"gateways {_counts(_sum(outcomes, 'door')) or '–'}",
        *(
            f"seconds from {what + ':':<44} {_spread([s for o in outcomes for s in getattr(o, name)])}"
            for what, name in (
                ("a fault to the next token or end", "recovery_s"),
                ("a worker's death to its jobs' next start", "takeover_s"),
                ("a running job's cancel to its end", "cancel_s"),
            )
        ),
    ]


def _sum(outcomes: Sequence[Outcome], name: str) -> Counter[Any]:
    return sum((getattr(outcome, name) for outcome in outcomes), Counter())


def _spread(values: Sequence[float]) -> str:
    if not (found := percentiles(values, RANKS)):
        return "–"
    return "P50 {:.2f}  P95 {:.2f}  max {:.2f}".format(*found) + f"  ({len(values)})"


def _counts(counter: Counter[Any]) -> str:
    return ", ".join(
        f"{name}: {count}" for name, count in sorted(counter.items(), key=lambda one: str(one[0]))
    )
