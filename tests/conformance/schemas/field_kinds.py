"""The kinds of fields that libraries make schemas of, by programs in the folder `kinds`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.environments import node_folder, python_of
from conformance.schemas.compiling import Function, Schemas, call
from millstream_worker.engine.grammars.grammar_compiler import InvalidGrammar

KINDS = Path(__file__).with_name("kinds")
LIMIT_S = 120
FUNCTION = "take"


@dataclass(frozen=True, slots=True)
class Kind:
    """`instances`: texts that the library says are of this kind."""

    name: str
    schema: Any
    instances: Sequence[str]


@dataclass(frozen=True, slots=True)
class Library:
    """`named`: with its version."""

    named: str
    kinds: Sequence[Kind]


def pydantic() -> Library:
    """Raises NotInstalled."""
    python = python_of("pydantic", ["pydantic", "email-validator"])
    return _told([str(python), str(KINDS / "pydantic_kinds.py")])


def zod() -> Library:
    """Raises NotInstalled."""
    return _told(["env", f"NODE_PATH={node_folder('zod', ['zod'])}", "node", str(KINDS / "zod_kinds.cjs")])


def faults(schemas: Schemas, kinds: Sequence[Kind], *, as_tool: bool) -> Iterator[str]:
    """A line for each kind that is refused, or whose own instances are not accepted: as an answer's format,
    or as parameters of a function."""
    for kind in kinds:
        tool = Function(FUNCTION, kind.schema)
        try:
            compiled = schemas.tools([tool]) if as_tool else schemas.response_format(kind.schema)
        except InvalidGrammar as error:
            yield f"{kind.name}: {error}"
            continue
        for text in kind.instances:
            if not compiled.accepts(call(FUNCTION, text) if as_tool else text):
                yield f"{kind.name}: forbids {text}"


def _told(command: list[str]) -> Library:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, env=own)
    head, *lines = map(json.loads, done.stdout.splitlines())
    return Library(head["of"], [Kind(**line) for line in lines])
