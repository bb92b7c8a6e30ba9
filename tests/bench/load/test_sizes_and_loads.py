"""How far an experiment goes: loads rise until each way is saturated, sizes grow while there is time."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ops.bench.growth.part import Setting
from ops.bench.load import prefix
from ops.bench.load.arrivals import Arrival, Prompts, Served
from ops.bench.models.size import size_of


@asynccontextmanager
async def served_up_to(experiment: prefix.Experiment, shared: bool) -> AsyncIterator[prefix.Drive]:
    """A mode that serves at once up to 120 requests/s, without sharing 20. What comes faster ends a second
    after each other."""

    async def drive(arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        due = [arrival.at_s for arrival in arrivals]
        fast = len(due) / max(due) <= (120 if shared else 20)
        return [Served(at, 4, at + 0.1, at + 0.2 if fast else n + 1.0) for n, at in enumerate(due)]

    yield drive


async def test_loads_rise_until_each_way_is_saturated(tiny: Path) -> None:
    options = argparse.Namespace(seconds=10.0)
    experiment = prefix.Experiment(tiny, size_of(tiny), Prompts(32, 8, 4), options)
    loads = [10.0, 40.0, 80.0, 160.0, 320.0]
    points = await prefix.measure("engine", experiment, loads, {"engine": served_up_to})
    assert [point.offered_s for point in points[True]] == [10.0, 40.0, 80.0, 160.0]
    assert [point.saturated for point in points[True]] == [False, False, False, True]
    assert [point.offered_s for point in points[False]] == [10.0, 40.0, 80.0]  # three, as were published


def test_a_size_for_which_there_is_no_time_is_not_begun(tmp_path: Path) -> None:
    setting = Setting(argparse.Namespace(seconds=50.0), tmp_path)
    seconds = iter([0.0, 0.0, 5.0, 15.0])  # the first takes 5 s, the second 10 s, the third would take 40
    setting.monotonic = lambda: next(seconds)
    assert list(setting.within([10, 20, 40], 2.0)) == [10, 20]
    assert setting.notes == ["not measured from 40 on: over 50 s"]
