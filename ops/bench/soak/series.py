"""What a soak has measured: samples over time, their growth, and their picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MIB = 2**20
# panel -> (axis label, prefix of the columns that it shows)
PANELS = {
    "memory of the processes": ("MiB", "rss "),
    "memory of the server": ("MiB", "server "),
    "keys, connections, channels": ("number (log)", "count "),
    "work": ("per second (log)", "rate "),
}


@dataclass(slots=True)
class Series:
    """Columns of equal length; `times` are seconds since the start."""

    times: list[float] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)

    def add(self, at_s: float, sample: Mapping[str, float]) -> None:
        """A column that is new, or missing in this sample, has NaN where it has no value."""
        self.times.append(at_s)
        for name in sample.keys() - self.columns.keys():
            self.columns[name] = [float("nan")] * (len(self.times) - 1)
        for name, values in self.columns.items():
            values.append(sample.get(name, float("nan")))

    def growth_per_hour(self, name: str) -> tuple[float, float]:
        """(slope per hour, mean) of a straight line through the last two thirds."""
        start = len(self.times) // 3
        times = np.array(self.times[start:])
        values = np.array(self.columns[name][start:])
        known = np.isfinite(values)
        if known.sum() < 3:
            return float("nan"), float("nan")
        slope = np.polyfit(times[known], values[known], 1)[0]
        return float(slope * 3600), float(values[known].mean())

    def write_csv(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["seconds", *self.columns])
            for row in zip(self.times, *self.columns.values(), strict=True):
                writer.writerow([f"{value:.6g}" for value in row])


def draw(series: Series, path: Path, title: Sequence[str], marks: Sequence[tuple[float, str]]) -> None:
    """One panel under the other over the minutes; `marks`: (second, what was done) as thin lines."""
    figure, axes = plt.subplots(len(PANELS), 1, figsize=(11, 14), sharex=True, layout="constrained")
    minutes = np.array(series.times) / 60
    for axis, (name, (unit, prefix)) in zip(axes, PANELS.items(), strict=True):
        shown = sorted(column for column in series.columns if column.startswith(prefix))
        for column in shown:
            axis.plot(minutes, series.columns[column], label=column.removeprefix(prefix), linewidth=1.2)
        for second, _ in marks:
            axis.axvline(second / 60, color="0.8", linewidth=0.6, zorder=0)
        axis.set_ylabel(unit)
        axis.set_title(name, loc="left", fontsize=10)
        axis.grid(axis="y", color="0.92")
        if "log" in unit:
            axis.set_yscale("symlog")
        axis.set_ylim(bottom=0)
        if shown:
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    axes[-1].set_xlabel("minutes (grey lines: an engine was killed)")
    figure.suptitle("\n".join(title), fontsize=9, family="monospace")
    figure.savefig(path, dpi=110)
    plt.close(figure)
