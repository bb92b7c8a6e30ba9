"""The results of the prefix experiment, as a table in the form of the published one and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path

from ops.bench import plots
from ops.bench.load.arrivals import LoadPoint, Spread
from ops.bench.plots import Curve, Panel, Row

PUBLISHED = """\
What the sources published, at 25 requests/s on hardware and with a model of their own, which are not these:
| prefix | requests/s done | average latency | average first token |
|---|---|---|---|
| shared | 19.81 | 6.46 s | 0.84 s |
| not shared | 14.08 | 13.67 s | 4.74 s |"""
SHARING = {True: "shared", False: "not shared"}
WHAT = {"engine": "the engine alone", "queue": "through the queue"}

Points = Mapping[bool, Sequence[LoadPoint]]  # by whether the prefix is shared, in rising order of the load


def table_rows(mode: str, points: Points, limits_s: Mapping[bool, float]) -> list[Row]:
    """Percentiles and the physical limit follow the published columns."""
    return [
        _row(mode, shared, point, limits_s[shared]) for shared, found in points.items() for point in found
    ]


def _row(mode: str, shared: bool, point: LoadPoint, limit_s: float) -> Row:
    row: dict[str, float | str] = {
        "run": mode,
        "prefix": SHARING[shared],
        "requests/s offered": point.offered_s,
        "done": point.done_s,
        "average latency s": point.latency_s.mean,
        "average first token s": point.first_token_s.mean,
    }
    for name, spread in (("latency", point.latency_s), ("first token", point.first_token_s)):
        row |= zip([f"{name} {rank}" for rank in ("P50", "P95", "P99")], astuple(spread)[1:], strict=True)
    row |= {"limit requests/s": limit_s, "requests": point.requests, "unfinished": point.unfinished}
    return row


def draw(path: Path, mode: str, points: Points, limits_s: Mapping[bool, float], notes: Sequence[str]) -> None:
    panels = [
        _spread("Latency", points, lambda point: point.latency_s),
        _spread("First token", points, lambda point: point.first_token_s),
        _done(points, limits_s),
    ]
    plots.draw(path, f"Requests with a shared prefix, {WHAT[mode]}", panels, notes)


def _spread(title: str, points: Points, take: Callable[[LoadPoint], Spread]) -> Panel:
    curves: list[Curve] = []
    for shared, found in points.items():
        loads = [point.offered_s for point in found]
        curves.append(Curve(f"prefix {SHARING[shared]}, mean", loads, [take(one).mean for one in found]))
        curves.append(Curve("P95", loads, [take(one).p95 for one in found], "tail"))
    return Panel(title, "requests/s offered", "seconds", curves, log_y=True)


def _done(points: Points, limits_s: Mapping[bool, float]) -> Panel:
    curves: list[Curve] = []
    loads = sorted({point.offered_s for found in points.values() for point in found})
    for shared, found in points.items():
        xs = [point.offered_s for point in found]
        curves.append(Curve(f"prefix {SHARING[shared]}", xs, [point.done_s for point in found]))
    curves += [
        Curve(f"limit, {SHARING[shared]}", loads, [top] * len(loads), "limit")
        for shared, top in limits_s.items()
    ]
    return Panel("Requests done", "requests/s offered", "requests/s", curves)
