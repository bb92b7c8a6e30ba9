"""Processes that run on the same cores: they run in the block, and no longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ops.bench.engines.adapters import Setup
from ops.bench.engines.child import Assignment
from ops.bench.models.size import size_of
from ops.bench.neighbours import neighbour
from support.models.checkpoints import build

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "processes"), [("spin", 1), ("compile", 3)])
def test_it_computes_until_the_block_ends(kind: str, processes: int) -> None:
    with neighbour(kind) as running:
        process = psutil.Process(running.pid)
        before = process.cpu_times()
        while len(family := [process, *process.children(recursive=True)]) < processes:
            time.sleep(0.01)
        while kind == "spin" and process.cpu_times().user < before.user + 0.05:
            time.sleep(0.01)
    gone, alive = psutil.wait_procs(family, 10)
    assert gone
    assert alive == []


def test_an_engine_says_how_fast_it_is(tmp_path: Path) -> None:
    model = build("llama", tmp_path / "model", max_position_embeddings=512)
    size = size_of(model)
    setup = Setup(
        folder=str(model),
        device="cpu",
        threads=1,
        kv_token_bytes=size.kv_token_bytes,
        kv_tokens=512,
        longest_row=400,
        rows=1,
        dtype=size.dtype,
    )
    own = Assignment("millstream:compile_model=off", setup, size.vocab_size, ("single",), 1.0, 0, answer="")
    with neighbour("engine", own) as running:
        while running.tokens_s is None:
            time.sleep(0.01)
        assert running.tokens_s > 0


def test_it_ends_with_who_has_started_it() -> None:
    code = (
        "import os; from ops.bench.neighbours import neighbour\n"
        "with neighbour('spin') as running: print(running.pid, flush=True); os._exit(0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, text=True)
    pid = json.loads(answer.stdout)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert pid != os.getpid()
