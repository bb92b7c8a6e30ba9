"""Runs the parts one after the other, each in a process of its own with a time limit, and sums up. Knows no
torch: whatever a part does to its process, its device or its memory, the next one begins."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DONE, FAILED, NEEDS_CUDA = 0, 1, 77  # how a part's process ends
_LEAST_S = 5.0  # a process that imports torch finds nothing in less
_TAIL = 1500  # characters of a failed part's log in the summary
_ENDS = {DONE: "done", NEEDS_CUDA: "needs CUDA"}


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    what: str
    limit_s: float
    entry: str  # module:function that takes a Survey


def survey(
    parts: Sequence[Part], device: str, out: Path, seconds: float, tell: Callable[[str], object]
) -> bool:
    """Whether no part failed. `out`/summary.json is written after each part, so that it is there whatever
    happens to this process."""
    out.mkdir(parents=True, exist_ok=True)
    started, done = time.monotonic(), list[dict[str, Any]]()
    for part in parts:
        tell(f"== {part.name}: {part.what}")
        done.append(_run(part, device, out, started + seconds - time.monotonic()))
        for line in done[-1]["findings"]:
            tell(f"{line['what']}: {line['found']}")
        tell(f"-- {part.name}: {done[-1]['end']}, {done[-1]['seconds']} s")
        _write(out / "summary.json", {"device": device, "seconds": _since(started), "parts": done})
    return all(part["end"] in _ENDS.values() for part in done)


def _run(part: Part, device: str, out: Path, left_s: float) -> dict[str, Any]:
    findings, log = out / f"{part.name}.jsonl", out / f"{part.name}.log"
    for old in (findings, log):
        old.unlink(missing_ok=True)
    started = time.monotonic()
    end = _ended(part, device, out, log, min(part.limit_s, left_s)) if left_s > _LEAST_S else "no time left"
    found = {"name": part.name, "what": part.what, "end": end, "seconds": _since(started)}
    found |= {"findings": _lines(findings)}
    if end not in _ENDS.values() and log.exists():
        found["log"] = log.read_text(errors="replace")[-_TAIL:]
    return found


def _ended(part: Part, device: str, out: Path, log: Path, limit_s: float) -> str:
    """How the part's process ended."""
    command = ("-u", "-X", "faulthandler", "-m", "gpu.parts", part.entry, part.name, device, str(out))
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command, f"{limit_s:.1f}"],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"killed at its limit of {limit_s:.0f} s"
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver
                    process.wait(_LEAST_S)
    return _ENDS.get(status, "failed") if status >= 0 else f"killed by {signal.Signals(-status).name}"


def _lines(file: Path) -> list[dict[str, Any]]:
    """What a part has found; the last line may be torn."""
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError, ValueError):
        lines.extend(json.loads(line) for line in file.read_text().splitlines())
    return lines


def _write(file: Path, summary: dict[str, Any]) -> None:
    part = file.with_suffix(".part")
    part.write_text(json.dumps(summary, indent=1))
    part.replace(file)


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)
