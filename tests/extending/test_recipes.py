"""Each recipe of the page *Extending* is followed with a stand-in, in a copy of this tree: checks ask for the
steps of which the page says so, and what was added works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.extending.edited_tree import PACKAGES, PRINTED, EditedTree, check_patch, patched
from support.pages import ROOT

PAGE = ROOT / "ops" / "pages" / "extending.md"
EQUAL = "tests/engine/runner/test_equivalence.py::test_the_batch_gives_the_tokens_of_generate"
MODEL_TYPE = "model_type.patch"
Recipe = dict[str, str]  # files of the steps, from the root, and the tests that ask for them, if any do


def recipes() -> dict[str, Recipe]:
    """By their patches."""
    made: dict[str, Recipe] = {}
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        patch = re.search(r"/extending/(\w+\.patch)\)", section)
        assert patch is not None
        rows = re.findall(r"^\| `([^`]+)` \| [A-Z].*\. \| (?:`(.+)`|–) \|$", section, re.MULTILINE)
        assert len(rows) == section.count("\n| ") - 1
        made[patch[1]] = {from_root(path): test for path, test in rows}
    return made


def from_root(path: str) -> str:
    """As the page shortens it."""
    [found] = [one for one in (path, *(f"{name}/{path}" for name in PACKAGES)) if (ROOT / one).exists()]
    return found


@pytest.mark.parametrize("patch", recipes())
def test_a_recipe_names_the_files_that_are_touched(patch: str) -> None:
    """A folder stands for a new file in it."""
    steps, touched = set(recipes()[patch]), patched(patch)
    folders = {step for step in steps if step.endswith("/")}
    new = {file for file in touched if not (ROOT / file).exists()}
    assert {f"{file.rpartition('/')[0]}/" for file in new} == folders
    assert touched - new == steps - folders - (set(PRINTED) - touched)


@pytest.mark.parametrize("patch", recipes())
def test_a_patch_fits_the_tree(patch: str) -> None:
    check_patch(patch)


def test_each_other_path_of_the_page_is_there() -> None:
    paths = re.findall(r"`((?:[a-z_]+/)+[\w.]*)`", PAGE.read_text("utf-8"))
    assert len(paths) > 50
    assert {from_root(path) for path in paths}


def follow(tree: EditedTree, found: dict[str, Recipe], working: str) -> None:
    """Exactly the checks fail whose steps are missing; with all steps, what sees it `working` passes, too."""
    asking = sorted({test for steps in found.values() for test in steps.values() if test})
    for patch, steps in found.items():
        tree.apply(patch, (file for file in patched(patch) if not steps.get(file)))
    assert tree.failures("--noconftest", *asking) == set(asking)  # whose imports take long
    for patch, steps in found.items():
        tree.apply(patch, (file for file in patched(patch) if steps.get(file)))
    tree.print_tables()
    assert tree.failures(*asking, working) == set()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_checks_ask_for_steps_and_what_is_added_works(tmp_path: Path) -> None:
    others = {patch: steps for patch, steps in recipes().items() if patch != MODEL_TYPE}
    tree = EditedTree(tmp_path)
    tree.apply(MODEL_TYPE, patched(MODEL_TYPE))
    follow(tree, others, "tests/extending/followed_recipes.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_checks_ask_for_a_model_types_steps(tmp_path: Path) -> None:
    follow(EditedTree(tmp_path), {MODEL_TYPE: recipes()[MODEL_TYPE]}, f"{EQUAL}[modernbert-decoder]")
