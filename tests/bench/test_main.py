"""Which parts of the benchmark the arguments choose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ops.bench.__main__ import DEFAULT, PARTS, main, planned

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops" / "bench"
PART = """
import time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    print("all that it started has ended", flush=True)
    raise SystemExit(5)
"""


def test_parts_by_name_or_one_with_options() -> None:
    assert planned(["brain", "engine"]) == [("brain",), ("engine",)]
    assert planned(["engine", "--repeats", "3"]) == [("engine", "--repeats", "3")]
    assert planned(["growth", "rows", "pool"]) == [("growth", "rows", "pool")]
    assert planned(["default"]) == list(DEFAULT)


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["--help"], ["brain", "engine", "nothing"]])
def test_anything_else_gets_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(arguments)
    assert status == (2 if "nothing" in arguments else 0)
    shown = capsys.readouterr().out
    assert all(name in shown for name in PARTS)


def test_each_part_is_there() -> None:
    assert all((FOLDER / f"{part.module.replace('.', '/')}.py").exists() for part in PARTS.values())
    assert all(name in PARTS for name, *_ in DEFAULT)


def test_parts_that_compute_get_an_engines_environment() -> None:
    seen: dict[str, object] = {}
    main(["idle", "engine"], lambda command, given: seen.update({command[4]: given}) or 0)
    idle, engine = seen["ops.bench.pieces.idle"], seen["ops.bench.engines.contest"]
    assert isinstance(idle, dict)
    assert idle["OMP_WAIT_POLICY"] == "PASSIVE"
    assert engine is None, "the peers would inherit it"


@pytest.mark.slow
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["alone", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_part_is_given_the_time_to_end_what_it_has_started(
    number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    program = (
        "import sys; from ops.bench.__main__ import run; run([sys.executable, '-c', '']); "
        "sys.exit(run([sys.executable, '-c', sys.argv[1]]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, PART],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    send(process.pid, number)
    assert process.communicate(timeout=30)[0] == "all that it started has ended\n"
    assert process.returncode == 5
