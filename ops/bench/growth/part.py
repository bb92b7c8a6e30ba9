"""One part of the growth experiment: what was measured at each size, and how it is drawn."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from ops.bench import machine
from ops.bench.machine import Limits
from ops.bench.models.checkpoints import checkpoint
from ops.bench.models.size import ModelSize, size_of
from ops.bench.plots import Curve, Kind, Panel, Row

N = TypeVar("N", int, float)


@dataclass
class Setting:
    """A part's inputs. `scratch` is its own folder, deleted at the end; `notes` are printed with its table.
    Checkpoint and limits are made and measured on first use.
    """

    options: argparse.Namespace
    scratch: Path
    notes: list[str] = field(default_factory=list)
    monotonic: Callable[[], float] = time.monotonic

    @cached_property
    def folder(self) -> Path:
        return checkpoint(self.options.model, self.options.device)

    @cached_property
    def size(self) -> ModelSize:
        return size_of(self.folder)

    @cached_property
    def limits(self) -> Limits:
        limits = machine.measure(self.options.threads, self.options.device)
        self.notes.append(f"{self.options.model}, {limits}")
        return limits

    def within(self, sizes: Sequence[N], power: float = 0.0) -> Iterator[N]:
        """The sizes, as long as there is time for another. `power`: of the size, by which its time grows; 0
        if that bounds itself.
        """
        start = last = self.monotonic()
        for place, size in enumerate(sizes):
            now = self.monotonic()
            next_s = (now - last) * (size / sizes[place - 1]) ** power if place and power else 0.0
            if now - start + next_s > self.options.seconds:
                self.notes.append(f"not measured from {size:,} on: over {self.options.seconds:g} s")
                return
            last = now
            yield size


@dataclass(frozen=True, slots=True)
class Outcome:
    title: str
    rows: Sequence[Row]
    panels: Sequence[Panel]


def curve(rows: Sequence[Row], x: str, y: str, label: str = "", kind: Kind = "measured") -> Curve:
    """One column of the rows against another; NaN for a row without it."""
    xs, ys = ([float(row.get(name, "nan")) for row in rows] for name in (x, y))
    return Curve(label or y, xs, ys, kind)
