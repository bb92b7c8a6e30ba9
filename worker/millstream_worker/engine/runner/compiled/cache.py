"""Records which models' compiled code lies in the cache folder, and whose compilation did not end well.

<cache>/compiled/<digest>/          one for each model as it runs here; torch keeps its code in it
    ready                           it is all there
    begun                           a byte for each compilation that has not ended well; locked while one runs
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from millstream_worker.engine.runner.attention import custom_op
from millstream_worker.engine.runner.checkpoint.trust import refuse_if_written_by_others
from millstream_worker.engine.runner.device import torch_internals
from millstream_worker.engine.runner.linear import float8_layers, panel, quantized_layers
from millstream_worker.engine.runner.model.load import LoadedModel
from millstream_worker.engine.runner.native import custom_ops
from millstream_worker.engine.runner.native.build import processor
from millstream_worker.engine.runner.quantization import codes, weight_codes
from millstream_worker.engine.runner.states import traced_states

# These define our operations for the compiler, which does not compare that when it finds code again.
_SOURCES = (
    custom_ops.__file__,
    torch_internals.__file__,
    custom_op.__file__,
    traced_states.__file__,
    panel.__file__,
    codes.__file__,
    weight_codes.__file__,
    float8_layers.__file__,
    quantized_layers.__file__,
)
_TRIES = 2  # one may have been interrupted by a stop that had nothing to do with it


class CompileCache:
    """Finds the compiled code of one model as it runs here: another precision, number of threads, processor
    or version of torch has other code."""

    def __init__(self, cache: Path, loaded: LoadedModel) -> None:
        self.folder = cache / "compiled" / _digest(loaded)
        self._ready = self.folder / "ready"
        self._begun = self.folder / "begun"

    @property
    def ready(self) -> bool:
        """True if the code is there: compiling then takes some seconds."""
        return os.path.exists(self._ready)  # a folder of somebody else's is no reason not to start

    @property
    def abandoned(self) -> bool:
        """True if compiling has twice ended by an error or with the process, and none is under way."""
        try:
            with self._begun.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of a dead process' lock
                return os.fstat(file.fileno()).st_size >= _TRIES
        except OSError:  # there is none; or it is locked
            return False

    @contextlib.contextmanager
    def compilation(self) -> Iterator[None]:
        """Records one compilation, which is done inside. Raises OSError where the folder cannot be written,
        or others can write to it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_if_written_by_others(self.folder.parent, self.folder)
        with self._begun.open("ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            file.write(b"x")
            yield
            with contextlib.suppress(OSError):  # a full disk: compiled it is all the same
                self._ready.touch()
                self._begun.unlink(missing_ok=True)


def _digest(loaded: LoadedModel) -> str:
    config = loaded.model.config.to_dict()
    config.pop("_name_or_path", None)  # where it lies
    facts = [
        config,
        str(loaded.dtype),
        loaded.device.type,
        loaded.attention,  # with which linear layers go
        loaded.weights,
        [
            (one.codes.dtype, one.scales.shape, one.offsets is None)
            for one in loaded.model.modules()
            if isinstance(one, quantized_layers.QuantizedLinear)
        ],
        [str(one.panels.dtype) for one in loaded.model.modules() if isinstance(one, panel.PanelLinear)],
        torch.get_num_threads(),
        processor(),
        os.environ.get("ATEN_CPU_CAPABILITY"),
        *(Path(source).read_text() for source in _SOURCES),
        *(_version(package) for package in ("millstream", "torch", "transformers")),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a checkout
        return ""
