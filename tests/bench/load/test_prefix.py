"""The prefix experiment, small: with the engine alone and through a real queue."""

from __future__ import annotations

import argparse
import asyncio
import csv
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from ops.bench import plots
from ops.bench.load import prefix
from ops.bench.load.arrivals import Arrival, Prompts, Served
from ops.bench.machine import Limits
from ops.bench.models.size import size_of
from support.workers.counting_worker import write_tokenizer

LIMITS = Limits(1e9, 1e9)


def options(**changes: object) -> argparse.Namespace:
    small = {
        "model": "tiny",
        "modes": ["engine"],
        "loads": [20.0, 40.0],
        "seconds": 1.0,
        "shape": [32, 8, 4],
        "rows": 8,
        "device": "cpu",
        "threads": 1,
        "compile_model": "off",
        "pictures": Path(),
    }
    return argparse.Namespace(**small | changes)


@pytest.mark.slow
def test_every_load_with_and_without_sharing(tiny: Path, tmp_path: Path) -> None:
    chosen = options(pictures=tmp_path, loads=[20.0, 40.0], seconds=0.5)
    rows = prefix.run(chosen, tiny, size_of(tiny), LIMITS)
    plots.write_csv(tmp_path / "prefix.csv", rows)
    found = list(csv.DictReader((tmp_path / "prefix.csv").read_text().splitlines()))
    assert {row["prefix"] for row in found} == {"shared", "not shared"}
    assert [row["requests"] for row in found] == ["18"] * len(found)  # of 20 two are there to warm up
    assert all(float(row["average latency s"]) >= float(row["average first token s"]) > 0 for row in found)
    assert (tmp_path / "prefix_engine.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
async def test_through_a_queue(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    shutil.copytree(write_tokenizer(tmp_path / "words"), tmp_path / "model", dirs_exist_ok=True)
    experiment = prefix.Experiment(tmp_path / "model", size_of(tiny), Prompts(32, 8, 4), options())
    async with prefix.through_queue(experiment, shared=True) as drive:
        point = await experiment.point(drive, 20.0, seed=1)
    assert point.unfinished == 0
    assert point.latency_s.mean >= point.first_token_s.mean > 0


def served_until(most_s: float) -> Callable[..., AbstractAsyncContextManager[prefix.Drive]]:
    """A mode that serves at once up to so many requests/s. What comes faster ends a second after each
    other; without sharing that begins at a sixth."""

    @asynccontextmanager
    async def mode(experiment: prefix.Experiment, shared: bool) -> AsyncIterator[prefix.Drive]:
        async def drive(arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
            due = [arrival.at_s for arrival in arrivals]
            fast = len(due) / max(due) <= (most_s if shared else most_s / 6)
            return [Served(at, 4, at + 0.1, at + 0.2 if fast else n + 1.0) for n, at in enumerate(due)]

        yield drive

    return mode


def test_loads_rise_until_each_way_is_saturated(tiny: Path) -> None:
    modes = {"engine": served_until(120.0)}
    experiment = prefix.Experiment(tiny, size_of(tiny), Prompts(32, 8, 4), options(seconds=10.0))
    loads = [10.0, 40.0, 80.0, 160.0, 320.0]
    points = asyncio.run(prefix.measure("engine", experiment, loads, modes))
    assert [point.offered_s for point in points[True]] == [10.0, 40.0, 80.0, 160.0]
    assert [point.saturated for point in points[True]] == [False, False, False, True]
    assert [point.offered_s for point in points[False]] == [10.0, 40.0, 80.0]  # three, as were published
