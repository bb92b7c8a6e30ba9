"""The weights of a folder's safetensors by name, each read when it is asked for. Its import needs no
torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import safe_open

from millstream_worker.engine.runner.checkpoint.size_bounds import read_json

INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


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
