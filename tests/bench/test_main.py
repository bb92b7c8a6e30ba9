"""Which parts of the benchmark the arguments choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from ops.bench.__main__ import DEFAULT, PARTS, main, planned

FOLDER = Path(__file__).parents[2] / "ops" / "bench"


def test_parts_by_name_or_one_with_options() -> None:
    assert planned(["brain", "engine"]) == [("brain",), ("engine",)]
    assert planned(["engine", "--repeats", "3"]) == [("engine", "--repeats", "3")]
    assert planned(["growth", "rows", "pool"]) == [("growth", "rows", "pool")]
    assert planned(["default"]) == list(DEFAULT)


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["--help"], ["brain", "engine", "nothing"]])
def test_anything_else_gets_the_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(arguments)
    assert status == (2 if "nothing" in arguments else 0)
    shown = capsys.readouterr().out
    assert all(name in shown for name in PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_there(part: str) -> None:
    assert (FOLDER / f"{part}.py").exists()


def test_make_bench_measures_parts_that_there_are() -> None:
    assert all(name in PARTS for name, *_ in DEFAULT)
