"""A server, a worker and client processes around a workload."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ops.bench import children
from ops.bench.engines.adapters import Setup
from ops.bench.engines.adapters.millstream import chosen
from ops.bench.measures import Run
from ops.bench.models.tokenizer import with_tokenizer
from ops.bench.workloads import Workload

from millstream.cli.embedded.embedded_server import EmbeddedServer

QUEUE = "bench"
START_S = 300.0


@dataclass(frozen=True, slots=True)
class Stack:
    """Of running processes; `clients` wait for work on their standard input."""

    processes: dict[str, psutil.Process]
    clients: list[subprocess.Popen[str]]

    def cpu_s(self) -> dict[str, float]:
        """Without the clients, which report it themselves."""
        return children.cpu_s(self.processes)

    def run(self, workload: Workload) -> tuple[Run, float]:
        """The workload dealt out among the clients; also the CPU seconds that these took."""
        for place, client in enumerate(self.clients):
            share = slice(place, None, len(self.clients))
            work = {"prompts": workload.prompts[share], "lengths": workload.output_lengths[share]}
            children.ask(client, json.dumps(work))
        answers = [children.answer_of(client) for client in self.clients]
        begun = min(answer["begun"] for answer in answers)
        runs = [Run.from_json(answer["run"]) for answer in answers]
        ends = [answer["begun"] - begun + run.seconds for answer, run in zip(answers, runs, strict=True)]
        timings = tuple(timing for run in runs for timing in run.timings)
        return Run(max(ends), timings), sum(float(answer["cpu_s"]) for answer in answers)


@contextlib.contextmanager
def stack(setup: Setup, clients: int) -> Iterator[Stack]:
    """All of it, ready for work; ended with the block."""
    with contextlib.ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        server = ending.enter_context(EmbeddedServer(folder / "server"))
        flags = worker_flags(setup, server.url, with_tokenizer(Path(setup.folder), folder / "model"))
        worker = subprocess.Popen([sys.executable, "-m", "millstream_worker", *flags], start_new_session=True)
        ending.callback(children.end, worker)
        waiting = [children.start("ops.bench.queued.client", server.url, QUEUE) for _ in range(clients)]
        for client in waiting:
            ending.callback(children.dismiss, client)
        processes = {"front": psutil.Process(worker.pid), "engine": children.engine_of(worker, START_S)}
        processes["server"] = children.embedded_server()
        yield Stack(processes, waiting)


def worker_flags(setup: Setup, url: str, model: Path) -> list[str]:
    """The engine's settings, as in the run without a queue, and the source of work."""
    flags = ["--redis-url", url, "--queue", QUEUE, "--model", str(model)]
    flags += ["--device", setup.device, "--threads", str(setup.threads), "--log-level", "warning"]
    for name, value in chosen(setup).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags
