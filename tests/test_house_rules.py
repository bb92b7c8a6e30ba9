"""Rules that no linter knows: nothing that executes on load, no remote model code, lean imports, constructors
with few parameters.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("producer/**/*.py"), *ROOT.glob("worker/**/*.py"), *ROOT.glob("ops/**/*.py")])
EXECUTES_ON_LOAD = {
    "pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "yaml", "code",
    "codeop",
}  # fmt: skip
# Run their argument, as Python or in a shell, or unpickle a file.
RUNS = {"eval", "exec", "compile", "__import__"}
RUNS_OR_UNPICKLES = {
    "os.system", "os.popen", "asyncio.create_subprocess_shell", "torch.load", "torch.serialization.load",
    "yaml.load", "numpy.load", "np.load", "pandas.read_pickle", *(f"builtins.{name}" for name in RUNS),
}  # fmt: skip
ONLY_FALSE = {"trust_remote_code", "shell", "allow_pickle"}  # as a keyword of any call


def forbidden(tree: ast.AST) -> list[str]:
    """What a source file does that none may: one line each."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += _imports(node.lineno, [alias.name for alias in names])
            case ast.ImportFrom(module=str(module), names=names):
                found += _imports(node.lineno, [module, *(f"{module}.{alias.name}" for alias in names)])
            case ast.keyword(arg=str(name), value=value) if name in ONLY_FALSE:
                if not (isinstance(value, ast.Constant) and value.value is False):
                    found.append(f"line {value.lineno}: {name}")
            case ast.Dict(keys=keys):  # for `**options`
                constants = [key.value for key in keys if isinstance(key, ast.Constant)]
                found += [f"line {node.lineno}: {key}" for key in constants if key in ONLY_FALSE]
            case ast.Attribute() if ast.unparse(node) in RUNS_OR_UNPICKLES:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.Name(id=name) if name in RUNS:
                found.append(f"line {node.lineno}: {name}")
    return found


def _imports(line: int, modules: list[str]) -> list[str]:
    return [
        f"line {line}: import of {name}"
        for name in modules
        if name in RUNS_OR_UNPICKLES or name.partition(".")[0] in EXECUTES_ON_LOAD
    ]


def test_nothing_executes_on_load() -> None:
    found = {str(path.relative_to(ROOT)): forbidden(ast.parse(path.read_text())) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


FORBIDDEN = [
    "import pickle",
    "from marshal import loads",
    "torch.load(f)",
    "torch.serialization.load(f)",
    "from torch import load",
    "numpy.load(f)",
    "np.load(f, allow_pickle=True)",
    "yaml.load(f)",
    "import yaml",
    "eval(text)",
    "exec(text)",
    "builtins.eval(text)",
    "compile(text, '', 'exec')",
    "__import__(name)",
    "os.system(line)",
    "os.popen(line)",
    "subprocess.run(line, shell=True)",
    "subprocess.run(line, shell=shell)",
    "asyncio.create_subprocess_shell(line)",
    "AutoModel.from_pretrained(x, trust_remote_code=True)",
    "AutoModel.from_pretrained(x, trust_remote_code=trust)",
    "AutoModel.from_pretrained(x, **{'trust_remote_code': True})",
]


def test_the_rule_finds_what_it_forbids() -> None:
    assert [code for code in FORBIDDEN if not forbidden(ast.parse(code))] == []


def test_client_imports_nothing_heavy() -> None:
    """`pip install millstream` alone brings no torch: the client must not even look for it."""
    heavy = "{'torch', 'transformers', 'numpy', 'typer', 'rich'}"
    code = f"import sys, millstream; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"


MOST_PARAMETERS = 6  # of a constructor


def constructors(tree: ast.AST) -> dict[str, int]:
    """How many parameters each class' constructor takes. Dataclasses have fields, not parameters."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                    given = one.args
                    found[node.name] = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
    return found


def test_constructors_take_few_parameters() -> None:
    front = [path for path in SOURCES if not {"engine", "ops"} & {*path.relative_to(ROOT).parts}]
    counts = {name: n for path in front for name, n in constructors(ast.parse(path.read_text())).items()}
    assert len(counts) > 50
    assert {name: count for name, count in counts.items() if count > MOST_PARAMETERS} == {}
