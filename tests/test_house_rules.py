"""Rules that no linter knows: nothing that executes on load, no remote model code, lean imports, a sorted
public API.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("producer/**/*.py"), *ROOT.glob("worker/**/*.py"), *ROOT.glob("ops/**/*.py")])
EXECUTES_ON_LOAD = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


def forbidden(tree: ast.AST) -> list[str]:
    """What a source file does that none may: one line each."""
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module.partition(".")[0]]
        found += [f"line {node.lineno}: import of {name}" for name in names if name in EXECUTES_ON_LOAD]
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            found += [] if refused else [f"line {node.value.lineno}: trust_remote_code"]
        if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node.value) == "torch":
            found.append(f"line {node.lineno}: torch.load")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_executes_on_load(path: Path) -> None:
    assert forbidden(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from marshal import loads",
        "torch.load(f)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_the_rule_finds_what_it_forbids(code: str) -> None:
    assert forbidden(ast.parse(code))


def test_client_imports_nothing_heavy() -> None:
    """`pip install millstream` alone brings no torch: the client must not even look for it."""
    heavy = "{'torch', 'transformers', 'numpy', 'typer', 'rich'}"
    code = f"import sys, millstream; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
