"""Processes that are asked by lines on their standard input, each answered by a line of JSON; what processes
spend."""

from __future__ import annotations

import json
import subprocess
import sys
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


def cpu_s(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """By name, since the start of each."""
    times = {name: process.cpu_times() for name, process in processes.items()}
    return {name: spent.user + spent.system for name, spent in times.items()}
