"""Converted checkpoints in a folder which any number of processes may share: made once, found again by name.

<name>/          what was made
<name>.lock      held by the process that makes it
<name>.partial/  a conversion under way, or what a killed one left
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from millstream_worker.engine.protocol.frames import LoadStep

Report = Callable[[str], None]

_TELL_S = 15.0  # that it waits: an engine that reports nothing for long is taken for stuck


def kept_folder(kept: Path, source: str, make: Callable[[Path], None], report: Report) -> Path:
    """Returns `kept`; `make` writes it to the folder that it is given, if that was not done before. `source`:
    the name of what is converted. Raises OSError, and what `make` raises."""
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with _held(f"{kept}.lock", f"which converts {source}", report):
        if not kept.is_dir():  # else another process has made it while this one waited
            partial = kept.with_name(kept.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            report(f"{LoadStep.CONVERT} {source}, once")
            try:
                make(partial)
                partial.rename(kept)
            finally:
                shutil.rmtree(partial, ignore_errors=True)  # half a model on a disk that may be full by it
    return kept


@contextlib.contextmanager
def _held(name: str, does: str, report: Report) -> Iterator[None]:
    """Reports while it waits for the lock: whoever holds it works, and lets go of it when it dies."""
    lock = FileLock(name)
    while True:
        with contextlib.suppress(Timeout):
            lock.acquire(timeout=_TELL_S)
            break
        report(f"{LoadStep.WAIT}, {does}")
    try:
        yield
    finally:
        lock.release()
