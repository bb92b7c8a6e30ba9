"""The small faults that a source can have, and the choice of those to try."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SEED, EACH = 14, 60


@dataclass(frozen=True, slots=True)
class Area:
    """Patterns of sources, and tests that may notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "brain": Area(
        (
            "worker/millstream_worker/engine/brain/**/*.py",
            "worker/millstream_worker/engine/grammars/**/*.py",
        ),
        tuple(f"tests/engine/{name}" for name in ("brain", "grammars", "test_loop.py")),
    ),
    "wire": Area(
        ("producer/millstream/wire/**/*.py", "producer/millstream/gateway/redis/*.py"),
        ("tests/wire", "tests/client", "tests/gateway"),
    ),
    "journal": Area(
        ("producer/millstream/batch/**/journal.py", "producer/millstream/batch/**/run*file.py"),
        ("tests/batch", "tests/cli/batch/test_batch_rerun.py", "tests/cli/batch/test_batch_cancel.py"),
    ),
    "lua": Area(
        ("producer/millstream/wire/lua/**/*.lua", "producer/millstream/gateway/redis/lua/**/*.lua"),
        ("tests/wire", "tests/gateway", "tests/security/test_roles.py",
         "tests/worker/jobs/equal_jobs/test_result_cache.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    area: str
    path: str
    function: str  # or script
    line: str  # stripped
    nth: int  # of the lines with this text in the function
    column: int  # in the stripped line
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path} {self.function}: {self.line!r}: {self.old!r} becomes {self.new!r}"


_COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: (" is ", " is not "), ast.IsNot: (" is not ", " is "),
    ast.In: (" in ", " not in "), ast.NotIn: (" not in ", " in "),
}  # fmt: skip
_COMPUTED = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*")}
_LUA = (
    ("==", "~="), ("~=", "=="), ("<=", "<"), (">=", ">"), ("<", "<="), (">", ">="),
    (" and ", " or "), (" or ", " and "),
    (" + ", " - "), (" - ", " + "), ("not ", ""), ("true", "false"), ("false", "true"),
    (" 0", " 1"), (" 1", " 2"),
)  # fmt: skip


def choose(root: Path) -> list[Mutant]:
    """The same mutants for the same sources."""
    chosen: list[Mutant] = []
    for name, area in AREAS.items():
        found = [mutant for path in sources(root, area) for mutant in mutants_of(root, name, path)]
        chosen += random.Random(SEED).sample(found, min(EACH, len(found)))
    return chosen


def sources(root: Path, area: Area) -> list[Path]:
    return sorted({path for pattern in area.sources for path in root.glob(pattern)})


def mutants_of(root: Path, area: str, path: Path) -> Iterator[Mutant]:
    lines = path.read_text().splitlines()
    functions = functions_of(path, lines)
    edits = lua_edits(lines) if path.suffix == ".lua" else python_edits(path.read_text(), lines)
    for row, column, old, new in edits:
        text, function = lines[row], functions[row]
        nth = sum(lines[r] == text and functions[r] == function for r in range(row))
        indent = len(text) - len(text.lstrip())
        yield Mutant(
            area, str(path.relative_to(root)), function, text.strip(), nth, column - indent, old, new
        )


def functions_of(path: Path, lines: Sequence[str]) -> list[str]:
    """For each line the innermost function that holds it; of a Lua script its name."""
    if path.suffix == ".lua":
        return [path.stem] * len(lines)
    names = [""] * len(lines)
    for node in ast.walk(ast.parse("\n".join(lines))):  # outer ones come first
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for row in range(node.lineno - 1, node.end_lineno or node.lineno):
                names[row] = node.name
    return names


def python_edits(source: str, lines: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    """Row, column, and what is replaced there by what."""
    for node in executed(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
                yield from between(left, right, lines, *_COMPARED[type(op)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
                yield from between(left, right, lines, *_COMPUTED[type(op)])
            case ast.BoolOp(op=op, values=[left, right, *_]):
                words = (" and ", " or ") if isinstance(op, ast.And) else (" or ", " and ")
                yield from between(left, right, lines, *words)
            case ast.UnaryOp(op=ast.Not()):
                yield node.lineno - 1, node.col_offset, "not ", ""
            case ast.Constant(value=bool() as value):
                yield node.lineno - 1, node.col_offset, str(value), str(not value)
            case ast.Constant(value=int() as value) if lines[node.lineno - 1][node.col_offset :].startswith(
                str(value)
            ):
                yield node.lineno - 1, node.col_offset, str(value), str(value + 1)
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() if node.lineno == node.end_lineno:
                statement = lines[node.lineno - 1][node.col_offset : node.end_col_offset]
                yield node.lineno - 1, node.col_offset, statement, "pass"


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Not decorators and annotations, whose faults change nothing, nor the words of messages."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("decorator_list", "annotation", "returns") and not isinstance(node, ast.JoinedStr):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from executed(child)


def between(
    left: ast.expr, right: ast.expr, lines: Sequence[str], old: str, new: str
) -> Iterator[tuple[int, int, str, str]]:
    if left.end_lineno == right.lineno and left.end_col_offset is not None:
        column = lines[right.lineno - 1].find(old, left.end_col_offset, right.col_offset)
        if column >= 0:
            yield right.lineno - 1, column, old, new


def lua_edits(lines: Sequence[str]) -> Iterator[tuple[int, int, str, str]]:
    for row, line in enumerate(lines):
        code = re.sub(r"'[^']*'", lambda text: "'" * len(text[0]), line.partition("--")[0])
        taken: set[int] = set()
        for old, new in _LUA:
            for found in re.finditer(re.escape(old), code):
                if taken.isdisjoint(range(*found.span())):
                    taken.update(range(*found.span()))
                    yield row, found.start(), old, new
        if re.match(r"\s*redis\.p?call\(.*\)$", code):
            yield row, len(line) - len(line.lstrip()), line.strip(), ""
