"""Runs files of checks in a process of its own, where Triton interprets kernels on the CPU: whether it does
is settled when it is imported. On a machine with a GPU they are compiled and run there. The plugin of that
process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}


def passed(*files: Path) -> int:
    """Returns how many checks have passed. None fails."""
    interpreted = {} if torch.cuda.is_available() else _INTERPRETED
    options = ["-p", "no:cacheprovider", "-p", __name__, "--tb=short", "-m", ""]
    paths = str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *map(str, files), *options],
        env=os.environ | interpreted | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-8000:] + finished.stderr[-2000:]
    found = re.search(r"(\d+) passed", finished.stdout)
    assert found
    return int(found[1])


@pytest.fixture(autouse=True, scope="session")
def _patched_once() -> Iterator[None]:
    """The interpreter replaces the functions of Triton's language at each call of a kernel's function, which
    takes most of its time."""
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None or "TRITON_INTERPRET" not in os.environ:
        yield
        return
    scopes: dict[frozenset[str], Any] = {}

    def once(function: Any) -> Any:
        names = frozenset(name for name in ("tl", "core") if name in function.__globals__)
        if names not in scopes:
            scopes[names] = patch(function)
        return interpreter._LangPatchScope()

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(interpreter, "_patch_lang", once)
        yield
