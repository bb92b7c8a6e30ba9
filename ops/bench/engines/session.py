"""One engine's turn, seen from outside: its process, environment, time limit and results."""

from __future__ import annotations

import contextlib
import ctypes.util
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ops.bench.engines.adapters.interface import Setup
from ops.bench.engines.child import Assignment
from ops.bench.measures import Run

from millstream_worker.engine_link.link import engine_environment

ROOT = Path(__file__).parents[3]
KV_SPACE_GIB = 4  # of vLLM on the CPU, at least: it does not know how much it needs


@dataclass(slots=True)
class Turn:
    """The results of a turn: a run per workload, as far as it got."""

    version: str = ""
    load_s: float = 0.0
    runs: dict[str, Run] = field(default_factory=dict)
    problem: str = ""


def take_turn(assignment: Assignment, python: str, limit_s: float, checkout: Path = ROOT) -> Turn:
    """Start the engine under that interpreter, by the benchmark of the checkout, and wait for its end, or end
    it after `limit_s`."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        answer, log = Path(folder) / "answer", Path(folder) / "log"
        answer.touch()
        text = json.dumps(asdict(assignment) | {"answer": str(answer)})
        with log.open("wb") as output:
            process = subprocess.Popen(
                [python, "-W", "ignore", "-m", "ops.bench.engines.child", text],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=checkout,
                env=environment(assignment.engine, python, assignment.setup),
                start_new_session=True,
            )
        try:
            status: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
        turn = _read(answer.read_text())
        if status is None:
            turn.problem = f"over {limit_s:.0f} s"
        elif status:
            turn.problem = _reason(log.read_text(errors="replace")) or f"exit status {status}"
        return turn


def environment(engine: str, python: str, setup: Setup) -> dict[str, str]:
    """The environment that a careful user of that engine would set."""
    own = dict(os.environ) | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    preloaded = own.pop("LD_PRELOAD", "")  # vLLM's
    if engine.startswith(("millstream", "hf-")):  # as the worker starts its engine process
        return engine_environment(own, setup.threads)
    if engine == "vllm":
        libraries = ":".join([*filter(None, [preloaded]), *_preloads(Path(python))])
        cores = sorted(os.sched_getaffinity(0))[: setup.threads or None]
        kv_gib = max(KV_SPACE_GIB, 1 + -(-setup.kv_tokens * setup.kv_token_bytes // 2**30))
        own |= {"VLLM_CPU_KVCACHE_SPACE": str(kv_gib), "VLLM_LOGGING_LEVEL": "ERROR"}
        own |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
        if setup.device == "cpu":
            own |= _in_one_process(cores)
        if libraries:
            own["LD_PRELOAD"] = libraries
    return own


def _in_one_process(cores: Sequence[int]) -> dict[str, str]:
    """vLLM in one process: its parts in processes of their own take the cores from its threads, which was 15
    to 35 % slower with two. In one process it does not set OpenMP up by itself; these are the values it gives
    its workers.
    """
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(len(cores)),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
    }


def _preloads(python: Path) -> Iterator[str]:
    """Libraries that vLLM's guide for the CPU recommends to preload, if they are installed: a faster
    allocator, and Intel's OpenMP out of its own environment.
    """
    if (openmp := python.absolute().parent.parent / "lib" / "libiomp5.so").exists():
        if allocator := ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc"):
            yield allocator
        yield str(openmp)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End its children, too: an engine's own worker processes may outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(answer: str) -> Turn:
    turn = Turn()
    for line in answer.splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # it was ended while it wrote this
        said: dict[str, Any] = json.loads(line)
        if "version" in said:
            turn.version, turn.load_s = said["version"], said["load_s"]
        else:
            turn.runs[said["workload"]] = Run.from_json(said["run"])
    return turn


def _reason(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:100] if lines else ""
