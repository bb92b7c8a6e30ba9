"""An engine's turn: what it answered counts, however it ended, and nothing of it is left running."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ops.bench.engines.adapters import Setup
from ops.bench.engines.child import Assignment, warm_up
from ops.bench.engines.session import ROOT, environment, take_turn
from ops.bench.measures import Run, Timing

SETUP = Setup("nowhere", "cpu", 1, kv_token_bytes=2, kv_tokens=64, longest_row=16, rows=3)
ASSIGNMENT = Assignment("hf-static", SETUP, 100, ("a", "r"), 0.1, seed=0, answer="")
RUN = Run(1.0, (Timing(0.5, 1.0, 3),), 3, 77)


def _interpreter(folder: Path, then: str) -> str:
    """Stands for an engine's interpreter: answers one of two workloads, then does `then`."""
    program = folder / "python"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, subprocess, sys, time\n"
        "answer = open(json.loads(sys.argv[-1])['answer'], 'a')\n"
        "print(json.dumps({'version': '1.2', 'load_s': 0.5}), file=answer)\n"
        f"print(json.dumps({{'workload': 'a', 'run': {RUN.as_json()!r}}}), file=answer, flush=True)\n"
        f"{then}\n"
    )
    program.chmod(0o700)
    return str(program)


HALF_A_LINE = 'answer.write(\'{"workload": "r", "ru\')\nanswer.flush()\nos.kill(os.getpid(), 9)'


@pytest.mark.parametrize(
    ("then", "problem"),
    [
        ("pass", ""),
        ("raise MemoryError('too large')", "MemoryError: too large"),
        (HALF_A_LINE, "exit status -9"),
    ],
)
def test_however_a_turn_ends_what_it_has_answered_counts(then: str, problem: str, tmp_path: Path) -> None:
    turn = take_turn(ASSIGNMENT, _interpreter(tmp_path, then), limit_s=60)
    assert (turn.version, turn.load_s, turn.problem) == ("1.2", 0.5, problem)
    assert turn.runs == {"a": RUN}


def test_the_warm_up_has_the_same_rows_and_other_prompts() -> None:
    work, warm = ASSIGNMENT.workload("a"), warm_up(ASSIGNMENT, "a")
    assert list(map(len, warm.prompts)) == list(map(len, work.prompts))
    assert warm.prompts[0] != work.prompts[0]
    assert set(warm.output_lengths) == {4}


def test_engines_get_the_environment_that_their_users_would_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = replace(ASSIGNMENT.setup, threads=1)
    for engine in ("millstream", "hf-static", "hf-continuous"):
        assert environment(engine, sys.executable, setup)["OMP_WAIT_POLICY"] == "PASSIVE"
    (tmp_path / "bin").mkdir()
    python = str(tmp_path / "bin" / "python")
    cores = sorted(os.sched_getaffinity(0))
    bare = environment("vllm", python, setup)
    assert bare["VLLM_CPU_OMP_THREADS_BIND"] == str(cores[0])
    assert bare["OMP_NUM_THREADS"] == "1"
    assert "libiomp5" not in bare.get("LD_PRELOAD", "")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libiomp5.so").touch()
    monkeypatch.setenv("LD_PRELOAD", "/some/tcmalloc.so")
    preloaded = environment("vllm", python, setup)["LD_PRELOAD"].split(":")
    assert preloaded[0] == "/some/tcmalloc.so"
    assert preloaded[-1] == str(tmp_path / "lib" / "libiomp5.so")
    assert "LD_PRELOAD" not in environment("millstream", sys.executable, setup), "an allocator of vLLM's"


def test_vllm_gets_room_for_all_rows_at_once() -> None:
    setup = replace(ASSIGNMENT.setup, kv_tokens=2**20, kv_token_bytes=2**14)  # 16 GiB
    assert environment("vllm", sys.executable, setup)["VLLM_CPU_KVCACHE_SPACE"] == "17"
    small = replace(setup, kv_tokens=1)
    assert environment("vllm", sys.executable, small)["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_the_child_imports_only_the_standard_library() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ops.bench.engines.child; "
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert set(found) <= {"ops", "__main__"}
