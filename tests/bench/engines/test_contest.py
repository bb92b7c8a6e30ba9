"""The command, from its options to table and file, with a tiny model; and the order of turns."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from ops.bench import machine
from ops.bench.engines.child import Assignment
from ops.bench.engines.contest import Contest, main, read_options
from ops.bench.engines.results import Report
from ops.bench.engines.session import ROOT, Turn
from ops.bench.measures import Run, Timing
from ops.bench.models.size import size_of
from support.models.checkpoints import build

pytestmark = pytest.mark.slow


def test_a_contest_prints_a_table_and_compares_another_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This one again, by another way to it."""
    model = build("llama", tmp_path / "model", max_position_embeddings=512)
    this, other = "millstream:compile_model=off", f"millstream@{ROOT}:compile_model=off"
    command = f"--model {model} --workloads r single --scale 0.03 --threads 1"
    command += f" --engines {this} vllm {other} --vllm-python {sys.executable} --results {tmp_path}"
    main(command.split())
    shown = capsys.readouterr().out
    assert "vllm: absent: no vllm in" in shown
    assert f"| {this} " in shown
    assert f"{model} was loaded, from imports to ready: {this}" in shown
    (path,) = tmp_path.glob("engine-*.json")
    assert str(path) in shown
    ours = Report.read(path).comparisons[0].engines[0]
    assert (ours.engine, ours.problem, len(ours.runs)) == (this, "", 1)
    assert ours.runs[0].steps
    assert ours.runs[0].peak_bytes > 2**20
    assert f"{other} {version('millstream')} of {machine.commit(ROOT)}" in shown
    assert f"### {model}: {this} over each of the others, all workloads" in shown
    assert re.search(r"\| millstream@\S+ \| \d+\.\d{3} +\| \d+\.\d{3} \((r|single)\)", shown)


def test_engines_take_turns_until_one_fails(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, int]] = []

    def turn(assignment: Assignment, python: str, limit_s: float, checkout: Path = ROOT) -> Turn:
        taken.append((assignment.engine, assignment.seed))
        if assignment.engine == "hf-static" and assignment.seed == 1:
            return Turn("2", problem="lost")
        return Turn("2", runs={"a": Run(1.0 + assignment.seed, (Timing(0.1, 1.0, 128),))})

    monkeypatch.setattr("ops.bench.engines.contest.take_turn", turn)
    options = read_options(["--repeats", "3"])
    contest = Contest("x", tiny, size_of(tiny), ("a",), ("millstream", "hf-static"), options)
    (comparison,) = contest.comparisons(contest.turns())
    assert taken == [
        ("millstream", 0), ("hf-static", 0), ("millstream", 1), ("hf-static", 1), ("millstream", 2),
    ]  # fmt: skip
    ours, static = comparison.engines
    assert ([run.seconds for run in ours.runs], ours.problem) == ([1.0, 2.0, 3.0], "")
    assert ([run.seconds for run in static.runs], static.problem) == ([1.0], "lost")


def test_the_setup_is_that_of_the_largest_workload(tiny: Path) -> None:
    options = read_options(["--threads", "1", "--scale", "0.5"])
    setup = Contest("x", tiny, size_of(tiny), ("a", "b"), (), options).setup()
    assert (setup.rows, setup.longest_row, setup.kv_tokens) == (16, 576, 16 * 576)
