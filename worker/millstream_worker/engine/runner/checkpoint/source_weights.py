"""The weights of a folder's safetensors by name, each read when it is asked for. Its import needs no
torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import safe_open

from millstream_worker.engine.runner.checkpoint.size_bounds import read_json

INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file of safetensors, by the file's header. `dtype`: as safetensors names it."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]

    def read(self, *index: Any) -> Any:
        """Returns what `index` takes of it as a torch tensor. Its file is mapped as long as that lives: what
        was read of an open one would stay resident."""
        with safe_open(self.file, framework="pt") as file:
            return file.get_slice(self.name)[index or ...]


def weight_files(folder: Path) -> list[Path]:
    """Returns the files that an index names, else the one of the usual name, else all safetensors. Raises
    ValueError for an index without files."""
    if (index := folder / INDEX).is_file():
        try:
            named = {PurePosixPath(file).name for file in read_json(index)["weight_map"].values()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index.name} cannot be read: {error!r}") from error
        return [folder / name for name in sorted(named)]
    if (whole := folder / _WHOLE).is_file():
        return [whole]
    return sorted(folder.glob("*.safetensors"))


@contextlib.contextmanager
def open_weights(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the slices of all weights by name: `weight[...]` reads one as a torch tensor, `get_shape()` does
    not. They can be read until the context ends."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, framework="pt")) for file in weight_files(folder)]
        yield {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118 - no mapping


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns all tensors of a folder by name. Reads headers only."""
    found = {}
    for path in weight_files(folder):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensor = file.get_slice(name)
                found[name] = StoredTensor(path, name, tensor.get_dtype(), tuple(tensor.get_shape()))
    return found
