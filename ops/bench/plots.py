"""Pictures of measured curves: panels side by side, the physical limit dashed, and below them place, time and
command.
"""

from __future__ import annotations

import csv
import math
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
from ops.bench import machine

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

FOLDER = Path("ops/bench/pictures")
COLOURS = ("#0b6fa4", "#c8553d", "#3d8b55", "#7a5aa6")
Row = dict[str, float | str]
Kind = Literal["measured", "tail", "limit"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A "tail" belongs to the curve before it (its P95); a "limit" is not measured: no curve can pass it. NaN
    values are left out.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    kind: Kind = "measured"


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


def draw(path: Path, title: str, panels: Sequence[Panel], notes: Sequence[str]) -> None:
    """`notes` go below the panels, in small letters."""
    width, height = 5.0 * len(panels), 4.4  # inches
    figure, axes = plt.subplots(1, len(panels), figsize=(width, height), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _draw_panel(axis, panel)
    lines = [line for note in notes for line in textwrap.wrap(note, int(16 * width))]
    figure.suptitle(title, fontsize=12, x=0.01, y=0.98, ha="left", va="top", weight="bold")
    figure.text(0.01, 0.02, "\n".join(lines), fontsize=7, color="0.35", va="bottom", family="monospace")
    figure.tight_layout(rect=(0.0, (0.1 + 0.13 * len(lines)) / height, 1.0, 1.0))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_panel(axis: Axes, panel: Panel) -> None:
    _draw_curves(axis, panel.curves)
    axis.set_title(panel.title, loc="left", fontsize=10)
    axis.set_xlabel(panel.x_label, fontsize=9)
    axis.set_ylabel(panel.y_label, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(color="0.92")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.log_x:
        axis.set_xscale("log")
        _label_powers(axis.xaxis)
    elif all(float(x).is_integer() for curve in panel.curves for x in curve.xs):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y:
        axis.set_yscale("log")
        _label_powers(axis.yaxis)
    else:
        axis.set_ylim(bottom=0)
    if len(panel.curves) > 1:
        axis.legend(fontsize=8, edgecolor="none", framealpha=0.85)


def _draw_curves(axis: Axes, curves: Sequence[Curve]) -> None:
    colours, dashes = iter(COLOURS), iter(("--", ":", "-."))
    colour = "black"
    for curve in curves:
        points = [pair for pair in zip(curve.xs, curve.ys, strict=True) if not math.isnan(pair[1])]
        xs, ys = [x for x, _ in points], [y for _, y in points]
        if curve.kind == "limit":
            axis.plot(xs, ys, linestyle=next(dashes), linewidth=1.0, color="0.4", label=curve.label)
        elif curve.kind == "tail":
            axis.plot(xs, ys, linewidth=0.8, color=colour, alpha=0.6, label=curve.label)
        else:
            colour = next(colours)
            axis.plot(xs, ys, marker="o", markersize=4, color=colour, label=curve.label)


def _label_powers(axis: Axis) -> None:
    """Labels of a logarithmic axis: 1, 2, 5, 10; only tens if it spans many."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}" if value < 1e6 else f"{value:.0e}"))
    axis.set_minor_formatter(NullFormatter())


def caption(part: str, device: str = "cpu") -> list[str]:
    """Date, commit and machine; the command that was typed."""
    where = f"{machine.today()}, commit {machine.commit()}, {machine.hardware(device)}"
    return [where, f"python -m ops.bench {part} {shlex.join(sys.argv[1:])}".strip()]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """A column for each name in the rows, empty in rows without it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def markdown(rows: Sequence[Row]) -> str:
    """The same as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    lines += [[_cell(row[name]) if name in row else "" for name in names] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
