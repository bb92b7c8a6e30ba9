"""Every part of the growth experiment, at its smallest sizes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from ops.bench.growth import experiment
from ops.bench.growth.part import Outcome, Setting
from ops.bench.machine import Limits


@pytest.fixture
def setting(tiny: Path, tmp_path: Path) -> Setting:
    options = argparse.Namespace(
        model=str(tiny), quick=True, seconds=60.0, steps=2, device="cpu", threads=1, compile_model="off"
    )
    quiet = Setting(options, tmp_path)
    quiet.limits = Limits(1e15, 1e15)  # measuring them takes longer than all else
    return quiet


def figures(outcome: Outcome, *names: str) -> list[float]:
    """Of all sizes, the smallest first."""
    return [float(row[name]) for name in names for row in outcome.rows]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["rows", "context", "pool", "queue", "workers"])
def test_a_part_measures_each_size_beside_its_limit(part: str, setting: Setting) -> None:
    outcome = experiment.PARTS[part](setting)

    assert outcome.rows
    assert not setting.notes
    for row in outcome.rows:
        rates = [name for name in row if f"limit {name}" in row and name.endswith("/s")]
        assert rates, f"no rate with a limit in {list(row)}"
        assert all(float(row[name]) > 0 for name in rates)
    assert any(curve.kind == "limit" for panel in outcome.panels for curve in panel.curves)
    if part == "rows":
        few, many = figures(outcome, "KV MiB")
        assert many == pytest.approx(4 * few)
    if part == "pool":
        ample, small, ample_preempts, _ = figures(outcome, "rows at once", "preempted %")
        assert small < ample
        assert ample_preempts == 0
    if part == "queue":
        few, many, least, most = figures(outcome, "server MiB", "limit server MiB")
        assert figures(outcome, "waiting") == [10, 100]
        assert many > most > least


def test_a_size_for_which_there_is_no_time_is_not_begun(setting: Setting) -> None:
    seconds = iter([0.0, 0.0, 5.0, 15.0])  # the first takes 5 s, the second 10 s, the third would take 40
    setting.monotonic = lambda: next(seconds)
    setting.options.seconds = 50.0
    assert list(setting.within([10, 20, 40], 2.0)) == [10, 20]
    assert setting.notes == ["not measured from 40 on: over 50 s"]


@pytest.mark.slow
def test_the_command(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("os.environ", dict(os.environ))
    flags = f"pool --quick --model {tiny} --threads 1 --compile-model off --pictures {tmp_path}".split()
    monkeypatch.setattr("sys.argv", ["experiment.py", *flags])
    experiment.main()
    assert {path.name for path in tmp_path.iterdir()} == {"growth_pool.csv", "growth_pool.png"}
