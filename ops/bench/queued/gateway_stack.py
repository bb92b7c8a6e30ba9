"""A server, a worker with a paced engine, a gateway, and processes that read its streams."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import psutil
from ops.bench import children
from ops.bench.queued.counted_stream import HOST
from ops.bench.stand_ins.counting import word_tokenizer

from millstream.cli.embedded.embedded_server import EmbeddedServer

QUEUE = "default"
START_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayStack:
    redis_url: str
    port: int
    processes: dict[str, psutil.Process]

    def cpu_s(self) -> dict[str, float]:
        return children.cpu_s(self.processes)

    @property
    def gateway(self) -> psutil.Process:
        return self.processes["gateway"]


@contextlib.contextmanager
def gateway_stack(steps_s: float, rows: int, *gateway_flags: str) -> Iterator[GatewayStack]:
    """All of it, ready for work; ended with the block. The engine draws a token for each of so many rows, so
    often a second.
    """
    with contextlib.ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="millstream-bench-")))
        server = ending.enter_context(EmbeddedServer(folder / "server"))
        worker = _start(ending, *_worker_command(server.url, folder, steps_s, rows))
        gateway = _start(
            ending, "-m", "millstream", "gateway", "--redis-url", server.url, "--queue", QUEUE, "--port", "0",
            "--files-url", str(folder / "files"), "--grace-s", "1", "--open", *gateway_flags,
            listens=True,
        )  # fmt: skip
        port = _port(gateway)
        _until_ready(port)
        processes = {"gateway": psutil.Process(gateway.pid), "front": psutil.Process(worker.pid)}
        [processes["engine"]] = processes["front"].children()
        processes["server"] = children.embedded_server()
        yield GatewayStack(server.url, port, processes)


class Readers:
    """Processes that share so many streams."""

    def __init__(self, port: int, streams: int, max_tokens: int, processes: int) -> None:
        shares = [streams // processes + (place < streams % processes) for place in range(processes)]
        command = ("ops.bench.queued.counted_stream", str(port))
        self._processes = [children.start(*command, str(share), str(max_tokens)) for share in shares]
        for process in self._processes:
            children.answer_of(process)  # all have begun

    def ask(self) -> dict[str, float]:
        """Events until now, streams that have not ended, CPU seconds: of all."""
        for process in self._processes:
            children.ask(process, "")
        answers = [children.answer_of(process) for process in self._processes]
        return {name: sum(answer[name] for answer in answers) for name in answers[0]}

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            children.dismiss(process)


def _worker_command(url: str, folder: Path, steps_s: float, rows: int) -> list[str]:
    engine = f"{sys.executable} -m ops.bench.stand_ins.paced --steps-s {steps_s}"
    command = ["-m", "millstream_worker", "--redis-url", url, "--queue", QUEUE, "--engine-command", engine]
    command += ["--model", str(word_tokenizer(folder)), "--max-rows", str(rows)]
    return [*command, "--log-level", "error", "--grace-s", "0"]


def _start(ending: contextlib.ExitStack, *arguments: str, listens: bool = False) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stderr=subprocess.PIPE if listens else None,
        text=True,
        start_new_session=True,
    )
    ending.callback(children.end, process)
    return process


def _port(gateway: subprocess.Popen[str]) -> int:
    assert gateway.stderr is not None
    said = ""
    for line in gateway.stderr:
        said += line
        if found := re.search(r'"gateway listens".*http://.*?:(\d+)', line):
            # Each request is a line: a pipe that nobody reads would stop the gateway.
            Thread(target=deque, args=(gateway.stderr, 0), daemon=True).start()
            return int(found[1])
    raise RuntimeError(f"the gateway ended: {said}")


def _until_ready(port: int) -> None:
    until = time.monotonic() + START_S
    while True:
        with urllib.request.urlopen(f"http://{HOST}:{port}/v1/models", timeout=10) as answer:
            if b'"ready":true' in answer.read():
                return
        assert time.monotonic() < until, f"no worker serves after {START_S:.0f} s"
        time.sleep(0.1)
