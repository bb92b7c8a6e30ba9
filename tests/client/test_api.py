"""The public API is flat, sorted and complete."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest

import millstream
from millstream import errors

LAZY = {
    "batch_rows", "batch_rows_blocking", "run_batch", "run_batch_blocking",
}  # imported when they are first used  # fmt: skip


def test_all_is_sorted_and_complete() -> None:
    public = [name for name, value in vars(millstream).items() if name[0] != "_" and not _module(value)]
    assert millstream.__all__ == sorted(millstream.__all__)
    assert sorted({*public, *LAZY}) == millstream.__all__
    assert all(callable(getattr(millstream, name)) for name in LAZY)


def _module(value: object) -> bool:
    return type(value).__name__ == "module"


def test_warnings_are_for_a_program_that_configures_logging() -> None:
    """Python prints them bare on standard error where nobody has asked for any."""
    warning = "import logging, millstream; logging.getLogger('millstream.wire').warning('interrupted')"
    configured = f"import logging; logging.basicConfig(); {warning}"
    for code, says in ((warning, ""), (configured, "WARNING:millstream.wire:interrupted\n")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr == says


def test_every_error_can_be_caught_by_name() -> None:
    public = {name: one for name, one in vars(errors).items() if not name.startswith("_")}
    raised = {name for name, one in public.items() if isinstance(one, type) and name != "Any"}
    assert raised <= set(millstream.__all__)
    for name in raised:
        assert issubclass(getattr(millstream, name), millstream.MillstreamError)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("n", 17, "at most 16"),
        errors.QueueFull("default", 3, 1000, 1.5, "memory"),
        errors.Unavailable("no answer"),
        errors.CursorExpired("0-a", "1-7"),
        errors.IncompleteAnswer(1, '{"a', "length"),
        errors.JobFailed("0-a", "too_long", "9 tokens over", millstream.Result(attempts=2)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_rebuilt_as_they_are(error: Exception) -> None:
    again = copy.copy(error)  # rebuilt as by whatever carries it to another process
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
