"""Which models' compiled code lies in the cache folder, and whose compilation did not end well. Torch keeps
the code itself, and does not say whose it has."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch

from millstream_worker.engine.runner.model import LoadedModel

# A compilation, another worker's perhaps, that began so long ago has ended badly. An engine that died of one
# must find it so when it is busy for long enough to try again (`compilation.BUSY_S`).
LONGEST_S = 200.0


class KeptCode:
    """Of one model, as it runs here: another precision, processor or version of torch has code of its own."""

    def __init__(self, folder: Path, loaded: LoadedModel) -> None:
        self.folder = folder
        name = _digest(loaded)
        self._ready = folder / f"{name}.ready"
        self._begun = folder / f"{name}.begun"

    @property
    def ready(self) -> bool:
        """To compile again takes a second or two."""
        return self._ready.exists()

    @property
    def abandoned(self) -> bool:
        """It was begun, and ended by an error or with the process: it may do so again."""
        try:
            return time.time() - self._begun.stat().st_mtime > LONGEST_S
        except OSError:
            return False

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Around the compiling. Raises OSError where nothing can be kept in the folder."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._begun.touch()
        yield
        self._ready.touch()
        self._begun.unlink(missing_ok=True)


def _digest(loaded: LoadedModel) -> str:
    facts = [
        loaded.model.config.to_dict(),
        str(loaded.dtype),
        loaded.device.type,
        torch.backends.cpu.get_cpu_capability(),
        *(version(package) for package in ("millstream", "torch", "transformers")),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
