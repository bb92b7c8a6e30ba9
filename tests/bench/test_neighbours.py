"""Processes that run on the same cores: they run in the block, and no longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from ops.bench.neighbours import neighbour

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
