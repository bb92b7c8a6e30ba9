"""The processes of a step's parts: whatever one does, the next one begins, and what was found is kept."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ops.gpu_survey.carried import part_environment
from ops.gpu_survey.ladder import Part
from ops.gpu_survey.report import Report
from ops.gpu_survey.step_run import StepRun

STAND_INS = """
import os, signal, subprocess, time
from ops.gpu_survey.survey import wait_for_quiet

def finds(survey):
    survey.found("device", survey.device, cores=2)

def crashes(survey):
    survey.found("before", "found")
    with (survey.out / f"{survey.name}.jsonl").open("a") as file:
        file.write('{"what": "torn')
    os.kill(os.getpid(), signal.SIGSEGV)

def hangs(survey):
    helper = subprocess.Popen(["sleep", "600"])
    survey.found("helper", str(helper.pid))
    time.sleep(600)

def fails(survey):
    print("on its way")
    raise ValueError("no such thing")

def needs(survey):
    survey.need_cuda()

def attempts(survey):
    survey.attempt("one", lambda: 1 / 0)
    survey.attempt("two", survey.need_cuda)
    survey.attempt("three", lambda: "found")

def loses_its_device(survey):
    survey.attempt("one", lost)
    survey.attempt("two", lambda: "not asked")

def lost():
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

def takes_time(survey):
    time.sleep(1)
    survey.found("ended", str(time.time()))

def times(survey):
    wait_for_quiet()
    survey.found("begun", str(time.time()))

def reads(survey):
    survey.found("setting", os.environ["SURVEY_ENGINE"])
"""


class Step:
    """Runs stand-ins by name, each with time enough."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told = folder, list[str]()
        (folder / "stand_ins.py").write_text(STAND_INS)
        (folder / "scratch").mkdir()

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def run(self, *groups: tuple[Part, ...], seconds: float = 60.0) -> list[dict[str, Any]]:
        """The parts of the report."""
        scratch = self.folder / "scratch"
        self.report = Report("1", "cpu", "abc", scratch, self.out)
        StepRun("cpu", seconds, scratch, part_environment([self.folder]), self.report, self.told.append).run(
            groups
        )
        parts: list[dict[str, Any]] = json.loads((self.out / "report.json").read_text())["parts"]
        return parts


def part(name: str, limit_s: float = 60.0, **others: Any) -> Part:
    return Part(name, f"stand_ins:{name}", limit_s, **others)


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


@pytest.mark.parametrize(
    ("name", "end", "found"),
    [
        ("crashes", "killed by SIGSEGV", ["found"]),
        ("fails", "failed, status 1", ["FAILED: ValueError: no such thing"]),
        ("needs", "needs CUDA", []),
    ],
)
def test_a_part_that_ends_badly_costs_the_next_one_nothing(
    name: str, end: str, found: list[str], step: Step
) -> None:
    first, second = step.run((part(name),), (part("finds"),))
    assert (first["end"], [line["found"] for line in first["findings"]]) == (end, found)
    assert second["end"] == "done"
    assert second["findings"] == [{"what": "device", "found": "cpu", "numbers": {"cores": 2}}]
    assert step.report.sound == (name == "needs")
    assert any(line.startswith(f"-- {name}: {end}") for line in step.told)
    if name == "crashes":
        assert "Segmentation fault" in first["log"]
    if name == "fails":
        assert first["log"].startswith("on its way")


@pytest.mark.slow
def test_a_hanging_part_is_killed_at_its_limit_with_its_children(step: Step) -> None:
    first, second = step.run((part("hangs", 1.0),), (part("finds"),))  # five times as long without a GPU
    assert first["end"] == "killed at its limit of 5 s"
    assert "in hangs" in first["log"], "where it hung"
    assert second["end"] == "done"
    [line] = first["findings"]
    helper = Path("/proc", line["found"], "stat")
    assert not helper.exists() or helper.read_text().split()[2] in "ZX"


def test_an_attempt_that_fails_is_found_and_the_next_is_made(step: Step) -> None:
    first, second = step.run((part("attempts"),), (part("loses_its_device"),))
    assert first["end"] == "failed, status 1"
    starts = ["FAILED: ZeroDivisionError: division by zero", "needs CUDA", "found"]
    assert all(f["found"].startswith(start) for f, start in zip(first["findings"], starts, strict=True))
    assert [line["what"] for line in second["findings"]] == ["one", "the part ended"]


def test_without_time_left_no_part_is_begun(step: Step) -> None:
    [only] = step.run((part("finds"),), seconds=0.0)
    assert (only["end"], only["findings"]) == ("no time left", [])
    assert not step.report.sound


def test_a_timed_part_waits_for_the_others_of_its_group(step: Step) -> None:
    step.run((part("times", waits=True), part("takes_time")))
    found = {one["what"]: float(one["found"]) for part in step.report.parts for one in part["findings"]}
    assert found["begun"] >= found["ended"]


def test_a_part_has_its_own_environment(step: Step) -> None:
    [only] = step.run((part("reads", environment={"SURVEY_ENGINE": "kv_dtype=int8"}),))
    assert only["findings"] == [{"what": "setting", "found": "kv_dtype=int8"}]
    assert only["environment"] == {"SURVEY_ENGINE": "kv_dtype=int8"}


def test_the_report_tells_failures_first_and_keeps_the_logs(step: Step) -> None:
    step.run((part("finds"),), (part("fails"),))
    lines = (step.out / "summary.txt").read_text().splitlines()
    assert lines.index("[fails] the part ended: FAILED: ValueError: no such thing") < lines.index(
        "[finds] device: cpu"
    )
    with tarfile.open(step.out / "logs.tar.gz") as tar:
        assert sorted(tar.getnames()) == ["fails.log", "finds.log"]
    assert len(list(step.out.iterdir())) == 4
    assert step.report.summary(most=4)[-1].startswith("...")
