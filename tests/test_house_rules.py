"""Rules that no linter knows: nothing that executes on load, no remote model code, lean imports, constructors
with few parameters, names and docstrings that say what they mean, nothing that nobody calls.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
    heavy = "{'torch', 'transformers', 'numpy', 'typer', 'rich', 'structlog'}"
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


PRODUCT = [path for path in SOURCES if "ops" not in path.relative_to(ROOT).parts]
NOUNS = {"Timing", "QuantizedEmbedding", "Ranking", "Sighting"}  # in -ing, of things
LONGEST_TEST_NAME = 60


def gerunds(tree: ast.AST) -> list[str]:
    """Classes that are named by what they do."""
    classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [name for name in classes if name.endswith("ing") and name not in NOUNS]


def riddles(tree: ast.AST) -> list[str]:
    """Docstrings that begin with a word behind which there is no sentence."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    return [text[:60] for text in texts if text.split(" ")[0] in ("What", "Whether", "Of")]


def uncalled(trees: list[ast.Module]) -> set[str]:
    """Private functions that nothing names. What a decorator registers is called by others."""
    defined: set[str] = set()
    used: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            match node:
                case (
                    ast.FunctionDef(name=name, decorator_list=[])
                    | ast.AsyncFunctionDef(name=name, decorator_list=[])
                ):
                    defined |= {name} if name.startswith("_") and not name.startswith("__") else set()
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                    used.add(name)
    return defined - used


def long_names(source: str) -> list[str]:
    names = re.findall(r"^ *(?:async )?def (test_\w+)", source, re.MULTILINE)
    return [name for name in names if len(name) > LONGEST_TEST_NAME]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in PRODUCT}


def test_names_and_docstrings_say_what_they_mean(trees: dict[str, ast.Module]) -> None:
    found = {path: gerunds(tree) + riddles(tree) for path, tree in trees.items()}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_every_private_function_is_called(trees: dict[str, ast.Module]) -> None:
    assert uncalled(list(trees.values())) == set()


def test_names_of_tests_are_short() -> None:
    found = {path.name: long_names(path.read_text("utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert {name: long for name, long in found.items() if long} == {}


def test_these_rules_find_what_they_forbid() -> None:
    assert gerunds(ast.parse("class Reading: pass")) == ["Reading"]
    assert riddles(ast.parse('def f():\n    """Whether it is."""')) == ["Whether it is."]
    assert uncalled([ast.parse("def _f(): pass\ndef _g(): pass\n_g()")]) == {"_f"}
    assert long_names(f"def test_{'a' * LONGEST_TEST_NAME}(): pass")
