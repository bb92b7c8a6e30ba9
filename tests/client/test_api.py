"""The public API is flat, sorted and complete, and stays light."""

from __future__ import annotations

import subprocess
import sys

import millstream
from millstream import errors


def test_all_is_sorted_and_complete() -> None:
    public = [name for name, value in vars(millstream).items() if name[0] != "_" and not _module(value)]
    assert millstream.__all__ == sorted(millstream.__all__)
    assert sorted(public) == millstream.__all__


def _module(value: object) -> bool:
    return type(value).__name__ == "module"


def test_every_error_can_be_caught_by_name() -> None:
    assert set(errors.__all__) <= set(millstream.__all__)
    for name in errors.__all__:
        assert issubclass(getattr(millstream, name), millstream.MillstreamError)


def test_importing_it_brings_nothing_heavy() -> None:
    program = (
        "import sys, millstream; print(*{'torch', 'transformers', 'numpy', 'typer'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
