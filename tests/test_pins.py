"""The pins of constraints.txt agree with each other wherever somebody installs: on Linux with glibc 2.31 or
later, with each supported Python, from the package index alone. Wheels that only this machine has are not
looked at (a CPU build of torch requires less than the one in the index). Nothing is installed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import uv

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")


def extras(path: str) -> str:
    """Which extras the file installs with the pins: `pip install … -c constraints.txt … '.[cli,worker]'`."""
    found = re.search(r"-c constraints\.txt (?:-e )?'\.\[([a-z,]+)\]'", (ROOT / path).read_text())
    assert found, f"{path} installs nothing with the pins"
    return found[1]


def test_whoever_develops_installs_what_images_do() -> None:
    """So what can be installed for them, can be in an image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras("Makefile") == "dev"
    assert "-e '.[cli,worker,embedded]'" in (ROOT / "Makefile").read_text()  # of `make demo`
    [own] = [need for need in project["optional-dependencies"]["dev"] if need.startswith("millstream[")]
    installed = set(own.removeprefix("millstream[").rstrip("]").split(","))
    for image in ("worker", "producer"):
        assert set(extras(f"ops/deploy/{image}.Dockerfile").split(",")) <= installed


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_pins_can_be_installed(python: str) -> None:
    command = [
        uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-config", "--no-header", "--no-annotate",
        "--python-version", python, "--python-platform", "x86_64-manylinux_2_31",
        "--only-binary", ":all:", "-c", "constraints.txt", "--extra", "dev", "pyproject.toml",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "UV_FIND_LINKS"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr


def test_each_supported_python_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = {line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert listed == set(PYTHONS)
    assert project["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.xdist_group("pins")
def test_the_tests_of_a_group_share_a_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes a group's name into the tests' ids, by a private name of pytest's."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@pins")
