"""The demo itself, as `make demo` runs it, on a model that counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.workers.answering_worker import read_rows
from support.workers.counting_worker import model_name, write_tokenizer
from support.workers.fake_engine import COMMAND

pytestmark = pytest.mark.slow

DEMO = Path(__file__).parents[2] / "ops" / "demo" / "run.py"


@pytest.fixture
def command(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    (tmp_path / "tokenizer").mkdir()
    model = model_name(write_tokenizer(tmp_path / "tokenizer", chat=True), context=1024)
    out = str(tmp_path / "out" / "results.jsonl")
    return (
        [sys.executable, str(DEMO), "--model", model, "--out", out],
        environment(MILLSTREAM_HOME=tmp_path / "home", MILLSTREAM_ENGINE_COMMAND=COMMAND),
    )


def test_the_demo_answers_all_and_streams_and_names_its_files(
    command: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    arguments, variables = command
    out = tmp_path / "out" / "results.jsonl"
    for _ in range(2):  # every run computes everything anew
        done = subprocess.run(
            arguments, env=variables, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(read_rows(out)) == 24
        cut = read_rows(out.with_suffix(".errors.jsonl"))  # this model counts on where a schema ends
        assert [row["error"]["code"] for row in cut] == ["incomplete_output"] * 12
        assert "24 completed, 12 failed" in done.stdout
        assert "of 24 answers are the expected ones" in done.stdout
        for name in ("TTFT", "TPOT", "output tokens/s", "cached"):
            assert name in done.stdout
        assert f"answers   {out}\nerrors    {out.with_suffix('.errors.jsonl')}" in done.stdout
        assert "w1 w2 w3" in done.stdout  # the streamed summary
        assert "answered before" not in done.stdout


def test_ctrl_c_ends_it_in_order(command: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    arguments, variables = command
    with subprocess.Popen(arguments, env=variables, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert any("using an embedded server" in line for line in running.stderr)
        os.kill(running.pid, 2)
        messages = running.stderr.read()
    assert running.returncode == 130, messages
    assert "interrupted" in messages
    assert "Traceback" not in messages
