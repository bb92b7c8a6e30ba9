"""Which names of torch the worker uses that torch does not promise: those with a part that begins with an
underscore. The list may only get shorter. Run this file to print them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

WORKER = Path(__file__).parents[1] / "worker" / "millstream_worker"
COUNTS = {
    "engine/runner/compiled/inductor.py": 5,
    "engine/runner/cuda_graphs/cuda.py": 1,
    "engine/runner/model/dtypes.py": 1,
    "engine/runner/replay/call_recorder.py": 1,
}


def private_names() -> dict[str, list[str]]:
    """By file."""
    files = sorted(WORKER.rglob("*.py"))
    found = {str(file.relative_to(WORKER)): names_in(ast.parse(file.read_text())) for file in files}
    return {file: names for file, names in found.items() if names}


def names_in(tree: ast.AST) -> list[str]:
    """Each once, and of `a._b` and `a._b.c` the longer."""
    imported = dict(imports(tree))
    used = set(imported.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if head in imported:
                used.add(f"{imported[head]}.{rest}")
    private = {name for name in used if any(is_private(part) for part in name.split("."))}
    return sorted(name for name in private if not any(other.startswith(f"{name}.") for other in private))


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Under which name a file has what of torch."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                named = [
                    (alias.asname or "torch", alias.name if alias.asname else "torch") for alias in names
                ]
                yield from (pair for pair, alias in zip(named, names, strict=True) if of_torch(alias.name))
            case ast.ImportFrom(module=str(module), names=names) if of_torch(module):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in names)


def of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def test_the_worker_uses_these_private_names_of_torch_and_no_others() -> None:
    assert {file: len(names) for file, names in private_names().items()} == COUNTS


def test_aliases_are_seen_through() -> None:
    source = "from torch._inductor import config as c\nimport torch\nimport torch._dynamo as d\n"
    tree = ast.parse(source + "c.cpp.threads\ntorch.ops.x._y.default(1)\nd.reset\ntorch.ones(1)\nother._z\n")
    assert names_in(tree) == [
        "torch._dynamo.reset",
        "torch._inductor.config.cpp.threads",
        "torch.ops.x._y.default",
    ]


if __name__ == "__main__":
    for file, names in private_names().items():
        print(file, *names, sep="\n    ")
