"""The parts of the benchmark, and the environment that each runs in."""

from __future__ import annotations

from pathlib import Path

from ops.bench.__main__ import DEFAULT, PARTS, main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "ops" / "bench"


def test_each_part_is_there() -> None:
    assert all((FOLDER / f"{part.module.replace('.', '/')}.py").exists() for part in PARTS.values())
    assert all(name in PARTS for name, *_ in DEFAULT)


def test_parts_that_compute_get_an_engines_environment() -> None:
    seen: dict[str, object] = {}
    main(["idle", "engine"], lambda command, given: seen.update({command[4]: given}) or 0)
    idle, engine = seen["ops.bench.pieces.idle"], seen["ops.bench.engines.contest"]
    assert isinstance(idle, dict)
    assert idle["OMP_WAIT_POLICY"] == "PASSIVE"
    assert engine is None, "the peers would inherit it"
