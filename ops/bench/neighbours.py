"""What runs on the same cores while something is timed: started before it, and ended with it.

    python -m ops.bench.neighbours spin|compile|engine [ASSIGNMENT]

`spin` is one process that computes without a pause, `compile` two compilers that begin anew when they are
done, `engine` an engine of ours that repeats a workload, and says after each time how many tokens it took how
long for. It ends with the process that has started it, or after `LIMIT_S`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from ops.bench import children
from ops.bench.engines import adapters
from ops.bench.engines.child import Assignment, warm_up
from ops.bench.engines.session import environment

from millstream_worker.engine.runner.native import build

KINDS = ("spin", "compile", "engine")
LIMIT_S = 1800.0
_SOURCE = Path(build.__file__).parent / "src" / "linear.cpp"


class Neighbour:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        children.answer_of(process)  # it runs
        self._process = process
        self._rates: list[float] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tokens_s(self) -> float | None:
        """Of an engine, on average over its times so far."""
        return sum(self._rates) / len(self._rates) if self._rates else None

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._reader.join()
        with self._process:  # closes its pipes, and waits for it
            pass

    def _read(self) -> None:
        with contextlib.suppress(AssertionError):  # it has ended
            while True:
                answer = children.answer_of(self._process)
                self._rates.append(answer["tokens"] / answer["seconds"])


@contextlib.contextmanager
def neighbour(kind: str, assignment: Assignment | None = None) -> Iterator[Neighbour]:
    """Runs when the block begins, and no more after it. `assignment`: an engine's, with its workloads."""
    command = [sys.executable, "-W", "ignore", "-m", "ops.bench.neighbours", kind]
    own = None
    if kind == "engine":
        assert assignment is not None, "an engine needs a workload"
        command.append(json.dumps(asdict(assignment)))
        own = environment(assignment.engine, sys.executable, assignment.setup)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=own,
        start_new_session=True,
    )
    running = Neighbour(process)
    try:
        yield running
    finally:
        running.end()


def _spin() -> None:
    while True:
        pass


def _compile() -> None:
    compiler = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))))
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        command = [str(compiler), "-std=c++17", "-O3", "-fopenmp", "-c", str(_SOURCE), "-o"]
        running = [subprocess.Popen([*command, f"{folder}/{one}.o"]) for one in range(2)]
        for place in itertools.cycle(range(2)):
            running[place].wait()
            running[place] = subprocess.Popen([*command, f"{folder}/{place}.o"])


def _engine(assignment: Assignment, say: Callable[..., None]) -> None:
    engine = adapters.load(assignment.engine, assignment.setup)
    for name in assignment.workloads:
        engine.run(warm_up(assignment, name), salt="warm")
    say()
    for turn in itertools.count(1):
        for name in assignment.workloads:
            workload = replace(assignment, seed=-100 - turn).workload(name)
            begun = time.perf_counter()
            engine.run(workload, salt=f"beside-{turn}-{name}")
            say(tokens=workload.output_tokens, seconds=time.perf_counter() - begun)


def _end_in_time(limit_s: float = LIMIT_S) -> None:
    """All of this session, which is this process' own, when standard input ends or time is over."""

    def watch() -> None:
        threading.Timer(limit_s, os.killpg, (os.getpid(), signal.SIGKILL)).start()
        sys.stdin.read()
        os.killpg(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    kind, *given = sys.argv[1:]
    _end_in_time()

    answers = sys.stdout

    def say(**line: float) -> None:
        print(json.dumps(line), file=answers, flush=True)

    if kind == "engine":
        with contextlib.redirect_stdout(sys.stderr):  # an engine's own lines
            _engine(Assignment.from_json(given[0]), say)
    say()
    _spin() if kind == "spin" else _compile()


if __name__ == "__main__":
    main()
