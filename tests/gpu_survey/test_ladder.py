"""The steps of the survey name parts that are there."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from ops.gpu_survey.ladder import LADDER, chosen

PARTS = [part for groups in LADDER.values() for group in groups for part in group]


def test_each_part_is_there() -> None:
    """Not imported: that takes seconds."""
    for part in PARTS:
        module, _, function = part.entry.partition(":")
        found = find_spec(module)
        assert found
        assert f"\ndef {function}(survey: Survey)" in Path(str(found.origin)).read_text()


def test_no_step_has_two_parts_of_one_name() -> None:
    """They would write into one file."""
    for groups in LADDER.values():
        names = [part.name for group in groups for part in group]
        assert len({*names}) == len(names)


def test_parts_are_chosen_by_name() -> None:
    assert chosen("1", frozenset()) == list(LADDER["1"])
    names = [[part.name for part in group] for group in chosen("1", frozenset({"narrow", "machine"}))]
    assert names == [["machine"], ["narrow"]]
    with pytest.raises(ValueError, match="step 1 has no part kernels; it has machine, llama8b"):
        chosen("1", frozenset({"kernels"}))
