"""The report of one step: few files, written anew after each part, so that they are there whatever happens to
the process that writes them. Knows no torch.

    report.json     all findings, and how each part ended     summary.txt   the same for people
    logs.tar.gz     what the parts printed                    traces.tar    profiles
"""

from __future__ import annotations

import io
import json
import platform
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ops.gpu_survey.ladder import Part
from ops.gpu_survey.survey import ENDS, FAILED

MOST_BYTES = 15 << 20  # of a file
_LOG_TAIL = 3000  # characters of a failed part's log in the report
_LINES, _WIDTH = 60, 200  # of the summary on a terminal

Finding = dict[str, Any]


class Report:
    """What the parts of one step, which write into the folder `scratch`, have found so far."""

    def __init__(self, step: str, device: str, commit: str, scratch: Path, out: Path) -> None:
        self._scratch, self._out = scratch, out
        self._started = time.monotonic()
        self.parts: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {
            "step": step,
            "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "commit": commit,
            "device": device,
            "python": platform.python_version(),
        }
        out.mkdir(parents=True, exist_ok=True)

    @property
    def sound(self) -> bool:
        return all(part["end"] in ENDS.values() for part in self.parts)

    def add(self, part: Part, end: str, seconds: float) -> None:
        """Add how a part has ended, with its findings, and write the report."""
        log, findings = self._scratch / f"{part.name}.log", _findings(self._scratch / f"{part.name}.jsonl")
        found: dict[str, Any] = {"name": part.name, "end": end, "seconds": round(seconds, 1)}
        found |= {"environment": dict(part.environment), "findings": findings}
        if (end not in ENDS.values() or any(map(_failed, findings))) and log.exists():
            found["log"] = log.read_text(errors="replace")[-_LOG_TAIL:]
        self.parts.append(found)
        self.write()

    def write(self) -> None:
        out, seconds = self._out, round(time.monotonic() - self._started, 1)
        self.facts["seconds"] = seconds
        part = out / "report.json.part"
        part.write_text(json.dumps(self.facts | {"parts": self.parts}, indent=1))
        part.replace(out / "report.json")
        (out / "summary.txt").write_text("\n".join(self.summary(10_000, 400)) + "\n")
        _pack(out / "logs.tar.gz", "w:gz", self._scratch.glob("*.log"), 8 * MOST_BYTES)
        _pack(out / "traces.tar", "w", self._scratch.glob("*.trace.json.gz"), MOST_BYTES)

    def summary(self, most: int = _LINES, width: int = _WIDTH) -> list[str]:
        """Returns lines: how the parts ended, what has failed, what was found."""
        facts = self.facts
        head = [f"step {facts['step']} at {facts['commit']}, {facts.get('seconds', 0)} s, {facts['device']}"]
        head += [f"{part['name']}: {part['end']}, {part['seconds']} s" for part in self.parts]
        failed, found = list[str](), list[str]()
        for part in self.parts:
            for one in part["findings"]:
                line = f"[{part['name']}] {one['what']}: {one['found']}"
                (failed if _failed(one) else found).append(line)
            if part["end"] not in ENDS.values():
                last = " | ".join(part.get("log", "").strip().splitlines()[-2:])
                failed.append(f"[{part['name']}] {part['end']}; its log ends: {last}")
        lines = [*head, *(["-- failed", *failed] if failed else []), "-- found", *found]
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... {len(lines) - most + 1} more lines in summary.txt"]
        return [line[:width] for line in lines]


def _failed(finding: Finding) -> bool:
    return str(finding["found"]).startswith(FAILED)


def _findings(file: Path) -> list[Finding]:
    """Returns the findings up to a line that is incomplete, as a killed process leaves it."""
    found = list[Finding]()
    for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _pack(target: Path, mode: Any, files: Iterable[Path], most: int) -> None:
    """Pack the smallest files first, as many as fit."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for file in sorted(files, key=lambda one: one.stat().st_size):
            if buffer.tell() + file.stat().st_size < most:
                tar.add(file, file.name)
    if len(buffer.getvalue()) <= MOST_BYTES:
        target.write_bytes(buffer.getvalue())
