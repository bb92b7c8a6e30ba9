"""One name for one thing over both packages, small folders, and no two folders that import each other."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "producer" / "millstream", ROOT / "worker" / "millstream_worker")
MIRRORED = {  # folders of tests, and of what they test
    **{name: PACKAGES[0] / name for name in ("batch", "cli", "client", "gateway", "logs", "openai", "wire")},
    "engine": PACKAGES[1] / "engine",
    "worker": PACKAGES[1],
}
MOST_FILES = 13  # Python files of a folder, without __init__.py and __main__.py
FACES = {"__init__", "__main__"}
MOST_IMPORTS = 15  # modules of ours that a file of the engine imports
GPU = "millstream_worker.engine.runner.gpu"
CHOOSERS = {  # import what only a GPU runs
    "millstream_worker.engine.assembly.chosen_device",
    "millstream_worker.engine.assembly.model_runner",
    "millstream_worker.engine.assembly.sampling_choice",
    "millstream_worker.engine.runner.model.attention_choice",
}
WIDE = {"scheduler", "load"}  # files that import more: they join many


def sources() -> dict[str, Path]:
    """Both packages' modules by dotted name; a folder's face under the folder's."""
    found = {}
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(package.parent).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = file
    return found


def twice(pairs: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that stand in more than one file, with the files."""
    files = defaultdict(list)
    for name, file in pairs:
        files[name].append(str(file.relative_to(ROOT)))
    return {name: found for name, found in sorted(files.items()) if len(found) > 1}


def classes() -> Iterator[tuple[str, Path]]:
    for file in sources().values():
        tree = ast.parse(file.read_text("utf-8"))
        yield from ((node.name, file) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def files() -> Iterator[tuple[str, Path]]:
    return ((file.stem, file) for file in sources().values() if file.stem not in FACES)


def large() -> dict[str, int]:
    count: dict[str, int] = defaultdict(int)
    for _, file in files():
        count[str(file.parent.relative_to(ROOT))] += 1
    return {folder: number for folder, number in count.items() if number > MOST_FILES}


def circles(imported: dict[str, set[str]]) -> set[frozenset[str]]:
    """Sets of folders of which each imports all others, directly or through more of the set."""
    reached = {folder: reachable(folder, imported) for folder in imported}
    sets = {
        frozenset(other for other in found if folder in reached.get(other, ()))
        for folder, found in reached.items()
    }
    return {together for together in sets if len(together) > 1}


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = edges.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def folder_imports() -> dict[str, set[str]]:
    """Each folder with those that its files import, but for the package's face and command."""
    modules = sources()
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in modules.items():
        if file.stem in FACES and file.parent in PACKAGES:
            continue
        for target in imports(ast.parse(file.read_text("utf-8")).body):
            module = longest(target, modules)
            if module is not None:
                found[folder_of(name, modules)].add(folder_of(module, modules))
    return found


def imports(body: list[ast.stmt]) -> Iterator[str]:
    """When the module is imported: not those for types, nor those inside of functions."""
    for node in body:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.If(test=test, orelse=orelse) if ast.unparse(test).endswith("TYPE_CHECKING"):
                yield from imports(orelse)
            case ast.If(body=inner, orelse=orelse) | ast.Try(body=inner, orelse=orelse):
                yield from imports([*inner, *orelse])


def longest(target: str, modules: dict[str, Path]) -> str | None:
    """The module that `from a.b import c` is about: a.b.c, or a.b."""
    return next((name for name in (target, target.rpartition(".")[0]) if name in modules), None)


def folder_of(module: str, modules: dict[str, Path]) -> str:
    """The file itself, if its folder has others in it: it may stand above some of them and below others."""
    file = modules[module]
    if file.stem == "__init__" or any(file.parent.glob("*/__init__.py")):
        return module
    return module.rpartition(".")[0]


def test_a_class_name_stands_for_one_class() -> None:
    assert twice(classes()) == {}


def test_a_file_name_stands_for_one_module() -> None:
    assert twice(files()) == {}


def test_a_folder_has_few_files() -> None:
    assert large() == {}


def test_folders_of_tests_mirror_those_of_the_packages() -> None:
    tested = {
        top: {
            file.parent.relative_to(ROOT / "tests" / top)
            for file in (ROOT / "tests" / top).rglob("test_*.py")
        }
        for top in MIRRORED
    }
    missing = [
        f"{top}/{one}" for top, found in tested.items() for one in found if not (MIRRORED[top] / one).is_dir()
    ]
    assert missing == []


def test_a_file_of_the_engine_imports_few_others() -> None:
    modules = sources()
    counts = {}
    for file in modules.values():
        if file.is_relative_to(PACKAGES[1] / "engine"):
            targets = imports(ast.parse(file.read_text("utf-8")).body)
            counts[file.stem] = len({longest(target, modules) for target in targets} - {None})
    assert len(counts) > 100
    assert {stem for stem, count in counts.items() if count > MOST_IMPORTS} <= WIDE


def everywhere(tree: ast.AST) -> Iterator[str]:
    """What a file imports at any time, but for types."""
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for_types = [node for node in guarded if ast.unparse(node.test).endswith("TYPE_CHECKING")]
    left_out = {inner for node in for_types for inner in node.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in left_out:
            yield from imports([node])


def test_only_choosers_import_what_a_gpu_runs() -> None:
    found = {
        name
        for name, file in sources().items()
        if not name.startswith(GPU)
        and any(target.startswith(f"{GPU}.") for target in everywhere(ast.parse(file.read_text("utf-8"))))
    }
    assert found == CHOOSERS


def test_no_folders_import_each_other() -> None:
    assert circles(folder_imports()) == set()


SOURCE = """
import a
from b import c
if typing.TYPE_CHECKING:
    import d
else:
    import e
def f():
    import g
"""


def test_imports_for_types_and_inside_of_functions_do_not_count() -> None:
    assert list(imports(ast.parse(SOURCE).body)) == ["a", "b.c", "e"]


def test_imports_of_functions_count_at_the_fence() -> None:
    assert set(everywhere(ast.parse(SOURCE))) == {"a", "b.c", "e", "g"}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"d"}}) == {frozenset("abc")}
