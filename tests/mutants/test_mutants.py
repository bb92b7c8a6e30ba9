"""Mutants are the same each time, and are found again where their code has moved."""

from __future__ import annotations

import shutil
from pathlib import Path

from ops.mutants.choosing import AREAS, choose, mutants_of, sources
from ops.mutants.running import ROOT, Position, apply, find, noticing_tests


def test_the_same_sources_give_the_same_mutants() -> None:
    chosen = choose(ROOT)
    assert chosen == choose(ROOT)
    assert {mutant.area for mutant in chosen} == set(AREAS)


def test_each_mutant_is_found_and_changes_one_line(tmp_path: Path) -> None:
    for area in AREAS.values():
        for path in sources(ROOT, area):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for mutant in choose(tmp_path):
        place = find(tmp_path, mutant)
        assert place is not None, mutant
        before = apply(place, mutant)
        pairs = zip(before.splitlines(), place.path.read_text().splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1, mutant
        place.path.write_text(before)


def test_a_moved_function_is_found_and_a_changed_one_is_not(tmp_path: Path) -> None:
    brain = tmp_path / "worker/millstream_worker/engine/brain"
    brain.mkdir(parents=True)
    old, new = brain / "old.py", brain / "folder" / "new.py"
    old.write_text("def fits(a, b):\n    return a < b\n")
    [mutant] = mutants_of(tmp_path, "brain", old)
    new.parent.mkdir()
    new.write_text("import os\n\n\n" + old.read_text())
    old.unlink()
    place = find(tmp_path, mutant)
    assert place is not None
    assert (place.path, place.row) == (new, 4)
    apply(place, mutant)
    assert new.read_text().endswith("return a <= b\n")
    assert find(tmp_path, mutant) is None


def test_a_mutant_is_tried_by_the_tests_that_can_notice_it(
    tmp_path: Path,
) -> None:
    """A constant is tried by all tests of its file, and a line by those that run it."""
    brain = tmp_path / "worker/millstream_worker/engine/brain"
    brain.mkdir(parents=True)
    (brain / "sizes.py").write_text("MOST = 3\n\n\ndef fits(a):\n    return a < MOST\n")
    constant, compared = mutants_of(tmp_path, "brain", brain / "sizes.py")
    file = "worker/millstream_worker/engine/brain/sizes.py"
    seen = {(file, 4): ["test_fits"], (file, 3): ["test_else"], ("other.py", 0): ["test_other"]}
    assert noticing_tests(tmp_path, constant, Position(brain / "sizes.py", 0), seen) == [
        "test_else",
        "test_fits",
    ]
    assert noticing_tests(tmp_path, compared, Position(brain / "sizes.py", 4), seen) == ["test_fits"]


def test_the_sources_and_tests_of_every_area_are_there() -> None:
    for area in AREAS.values():
        assert all(any(ROOT.glob(pattern)) for pattern in area.sources)
        assert all((ROOT / path).exists() for path in area.tests)
