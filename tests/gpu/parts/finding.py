"""What a part is given: its device, and a place for what it finds, written down as soon as it is found."""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

# Of errors after which a process has no device any more.
_LOST = ("illegal memory", "illegal instruction", "misaligned", "launch failure", "device-side assert")


class NeedsCUDA(Exception):
    """There is no tiny form of this for the CPU."""


class Survey:
    """What a part is given: its device, and where its findings go. On the CPU everything is tiny."""

    def __init__(self, name: str, device: str, out: Path) -> None:
        self.name, self.device, self.out = name, device, out
        self.tiny = device == "cpu"
        # Compiled code and models: for the next call on this machine, not to be taken along.
        self.scratch = Path(tempfile.gettempdir(), f"millstream-survey-{os.getuid()}")
        self.failed = False

    def found(self, what: str, found: str) -> None:
        with (self.out / f"{self.name}.jsonl").open("a") as file:
            file.write(json.dumps({"what": what, "found": found}) + "\n")
        print(f"{what}: {found}", flush=True)

    def attempt(self, what: str, compute: Callable[[], str]) -> None:
        """What is computed is found. A failure is found, too, and does not keep the part from the next
        attempt, unless the device is lost to this process."""
        started = time.perf_counter()
        try:
            found = compute()
        except NeedsCUDA as error:
            found = f"needs CUDA {error}".rstrip()
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            found = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if any(reason in str(error) for reason in _LOST):
                self.found(what, found)
                raise
        self.found(what, f"{found} ({time.perf_counter() - started:.1f} s)")

    def need_cuda(self, why: str = "") -> None:
        if self.tiny:
            raise NeedsCUDA(why)
