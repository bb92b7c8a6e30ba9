"""Processes that are asked by lines on their standard input, each answered by a line of JSON; what processes
spend."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import psutil


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()


def answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the child has ended"
    answer: dict[str, Any] = json.loads(line)
    return answer


def dismiss(child: subprocess.Popen[Any]) -> None:
    """It ends with its input."""
    child.communicate(timeout=60)


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    dismiss(process)


def embedded_server() -> psutil.Process:
    """The one that this process has started."""
    return next(child for child in psutil.Process().children() if "valkey" in child.name())


def engine_of(worker: subprocess.Popen[Any], within_s: float) -> psutil.Process:
    """The worker's engine, once it is there."""
    until = time.monotonic() + within_s
    while not (found := psutil.Process(worker.pid).children()):
        assert worker.poll() is None, "the worker ended"
        assert time.monotonic() < until, f"the worker started no engine within {within_s:.0f} s"
        time.sleep(0.05)
    return found[0]


def cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """By name, since the start of each."""
    return {name: spent_s(process) for name, process in processes.items()}


def spent_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
