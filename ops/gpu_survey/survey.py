"""The context of one part: its device, and its findings, which are written as soon as they are found."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

QUIET = "GPU_SURVEY_QUIET"  # names the file that appears when the parts beside this one have ended
FAILED = "FAILED"  # how a finding begins that is a failure
DONE, NEEDS_CUDA = 0, 77  # exit statuses of a part's process that are no failure
ENDS = {DONE: "done", NEEDS_CUDA: "needs CUDA"}
# Of errors after which a process has no device any more.
_LOST = ("illegal memory", "illegal instruction", "misaligned", "launch failure", "device-side assert")


class NeedsCUDA(Exception):
    """There is no tiny form of this for the CPU."""


class Survey:
    """One part's device and findings. On the CPU everything is tiny."""

    def __init__(self, name: str, device: str, out: Path) -> None:
        self.name, self.device, self.out = name, device, out
        self.tiny = device == "cpu"
        self.scratch = scratch()
        self.failed = False

    def found(self, what: str, found: str, **numbers: object) -> None:
        """Record a finding. `numbers` are for programs that read the report."""
        line = {"what": what, "found": found} | ({"numbers": numbers} if numbers else {})
        with (self.out / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{what}: {found}", flush=True)

    def attempt(self, what: str, compute: Callable[[], str]) -> None:
        """Record what `compute` returns, or its failure: the part goes on with the next attempt, unless the
        device is lost to this process."""
        started = time.perf_counter()
        try:
            found = compute()
        except NeedsCUDA as error:
            found = f"needs CUDA {error}".rstrip()
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            found = f"{FAILED}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if any(reason in str(error) for reason in _LOST):
                self.found(what, found)
                raise
        self.found(what, f"{found} ({time.perf_counter() - started:.1f} s)")

    def need_cuda(self, why: str = "") -> None:
        """Raises NeedsCUDA on the CPU."""
        if self.tiny:
            raise NeedsCUDA(why)


def scratch() -> Path:
    """Folder of compiled code: it stays for the next run on this machine, and is not reported."""
    return Path(tempfile.gettempdir(), f"millstream-survey-{os.getuid()}")


def wait_for_quiet() -> float:
    """Wait until the parts beside this one have ended, before anything is timed: each of them has a limit.
    Returns seconds."""
    place, begun = os.environ.get(QUIET), time.monotonic()
    while place and not Path(place).exists():
        time.sleep(0.1)
    return time.monotonic() - begun
