"""Which names of torch the worker uses that torch does not promise: those with a part that begins with an
underscore. The list may only get shorter. Run this file to print them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterator
from pathlib import Path

import torch

WORKER = Path(__file__).parents[1] / "worker" / "millstream_worker"
ALLOWED = {  # all in one file
    "engine/runner/device/torch_internals.py": {
        "torch._C._cuda_endAllocateToPool",
        "torch._C._cuda_releasePool",
        "torch._dynamo.config.specialize_float",
        "torch._inductor.codecache.PyCodeCache.modules",
        "torch._inductor.codecache._HEADER_DIR",
        "torch._inductor.codecache._HEADER_LOCK_DIR",
        "torch._inductor.custom_graph_pass.CustomGraphPass",
        "torch._inductor.custom_graph_pass.get_hash_for_files",
        "torch.ops.mkldnn._is_mkldnn_bf16_supported",
    }
}
OF_CUDA = {"torch._C._cuda_endAllocateToPool", "torch._C._cuda_releasePool"}  # in builds with CUDA only


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


def test_the_worker_uses_only_the_listed_private_names_of_torch() -> None:
    assert {file: set(names) for file, names in private_names().items()} == ALLOWED


def test_this_version_of_torch_has_the_names() -> None:
    for name in set[str]().union(*ALLOWED.values()) - OF_CUDA:
        parts = name.split(".")
        found: object = torch
        for count, part in enumerate(parts[1:], 2):
            with contextlib.suppress(ImportError):  # an attribute, of a module that is there by now
                importlib.import_module(".".join(parts[:count]))
            found = getattr(found, part)


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
