"""The survey's processes: whatever one part does, the next one begins, and what was found is kept. What the
parts find is a GPU's; here those that can run in tiny form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gpu.parts import PARTS
from gpu.parts.running import Part, survey

TESTS = Path(__file__).parents[1]
STAND_INS = """
import os, signal, subprocess, sys, time
from gpu.parts.finding import NeedsCUDA

def finds(survey):
    survey.found("device", survey.device)

def crashes(survey):
    survey.found("before", "found")
    with (survey.out / f"{survey.name}.jsonl").open("a") as file:
        file.write('{"what": "torn')
    os.kill(os.getpid(), signal.SIGSEGV)

def hangs(survey):
    helper = subprocess.Popen(["sleep", "600"])
    (survey.out / "helper").write_text(str(helper.pid))
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
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Part]:
    """Stand-ins by name, each with time enough."""
    (tmp_path / "stand_ins.py").write_text(STAND_INS)
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}:{tmp_path}")
    names = [line[4:].partition("(")[0] for line in STAND_INS.splitlines() if line.startswith("def ")]
    return {name: Part(name, "", 60.0, f"stand_ins:{name}") for name in names}


def surveyed(
    parts: list[Part], tmp_path: Path, seconds: float = 60.0
) -> tuple[bool, list[dict[str, Any]], str]:
    told: list[str] = []
    sound = survey(parts, "cpu", tmp_path / "out", seconds, told.append)
    return sound, json.loads((tmp_path / "out" / "summary.json").read_text())["parts"], "\n".join(told)


@pytest.mark.parametrize(
    ("name", "end", "found"),
    [
        ("crashes", "killed by SIGSEGV", ["found"]),
        ("fails", "failed", ["FAILED: ValueError: no such thing"]),
        ("needs", "needs CUDA", []),
    ],
)
def test_a_part_that_ends_badly_costs_the_next_one_nothing(
    name: str, end: str, found: list[str], parts: dict[str, Part], tmp_path: Path
) -> None:
    sound, (first, second), told = surveyed([parts[name], parts["finds"]], tmp_path)
    assert (first["end"], [line["found"] for line in first["findings"]]) == (end, found)
    assert (second["end"], second["findings"]) == ("done", [{"what": "device", "found": "cpu"}])
    assert sound == (name == "needs")
    assert f"-- {name}: {end}" in told
    if name == "crashes":
        assert "Segmentation fault" in first["log"]
    if name == "fails":
        assert first["log"].startswith("on its way")


def test_a_part_that_hangs_is_killed_at_its_limit_with_all_that_it_started(
    parts: dict[str, Part], tmp_path: Path
) -> None:
    hanging = Part("hangs", "", 2.0, parts["hangs"].entry)
    sound, (first, second), _ = surveyed([hanging, parts["finds"]], tmp_path)
    assert not sound
    assert first["end"] == "killed at its limit of 2 s"
    assert "in hangs" in first["log"], "where it hung"
    assert second["end"] == "done"
    helper = Path("/proc", (tmp_path / "out" / "helper").read_text(), "stat")
    assert not helper.exists() or helper.read_text().split()[2] in "ZX"


def test_an_attempt_that_fails_is_found_and_the_next_is_made(parts: dict[str, Part], tmp_path: Path) -> None:
    _, (first, second), _ = surveyed([parts["attempts"], parts["loses_its_device"]], tmp_path)
    assert first["end"] == "failed"
    starts = ["FAILED: ZeroDivisionError: division by zero", "needs CUDA", "found"]
    assert all(f["found"].startswith(start) for f, start in zip(first["findings"], starts, strict=True))
    assert second["end"] == "failed"
    assert [line["what"] for line in second["findings"]] == ["one", "the part ended"]


def test_without_time_left_no_part_is_begun(parts: dict[str, Part], tmp_path: Path) -> None:
    sound, (only,), _ = surveyed([parts["finds"]], tmp_path, seconds=0.0)
    assert (sound, only["end"], only["findings"]) == (False, "no time left", [])


def test_each_part_is_there() -> None:
    """Not imported: that takes seconds."""
    for part in PARTS:
        module, _, function = part.entry.partition(":")
        found = find_spec(module)
        assert found
        assert f"\ndef {function}(survey: Survey)" in Path(str(found.origin)).read_text()
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tiny_parts_on_the_cpu(tmp_path: Path) -> None:
    """By the documented command."""
    pytest.importorskip("triton")
    root = TESTS.parent
    command = [sys.executable, "tests/gpu/survey.py", "--device", "cpu", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": "worker:producer:tests:."}
    finished = subprocess.run(
        [*command, "--parts", "machine,narrow,steps,variants,sampler,engine"],
        cwd=root, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    parts = json.loads((tmp_path / "summary.json").read_text())["parts"]
    assert {part["end"] for part in parts} == {"done"}
