"""The soak's own machinery: that it runs, that it would see growth, and what it writes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from ops.bench.soak.series import Series  # noqa: E402 - it is no package of the distribution

pytestmark = pytest.mark.slow


def test_growth_is_that_of_the_last_two_thirds() -> None:
    series = Series()
    for second in range(0, 3600, 60):
        warm = 100.0 if second >= 1200 else second / 12
        series.add(second, {"flat": warm, "leak": warm + second / 360})
    assert series.growth_per_hour("flat") == (pytest.approx(0, abs=1e-6), pytest.approx(100))
    assert series.growth_per_hour("leak")[0] == pytest.approx(10)


@pytest.mark.timeout(300)
def test_a_short_soak_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ops.bench", "soak", "--minutes", "0.08", "--every-s", "1"]
    command += ["--kill-every-s", "2", "--result-ttl-s", "2", "--tasks", "40"]
    command += ["--picture", str(tmp_path / "soak.png"), "--logs", str(tmp_path / "logs")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    logs = [path.read_text()[-2000:] for path in (tmp_path / "logs").glob("*.log")]
    assert run.returncode == 0, (run.stdout, run.stderr, logs)
    assert "nothing lost, wrong or left" in run.stdout
    assert len(list(csv.DictReader((tmp_path / "soak.csv").read_text().splitlines()))) >= 2
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")
