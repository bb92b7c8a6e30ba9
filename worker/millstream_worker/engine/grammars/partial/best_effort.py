"""Chooses the schemas by which a grammar keeps functions' arguments: whole, or without what the compiler does
not know, where the caller did not ask for `strict`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream_worker.engine.grammars.grammar_fault import path_of
from millstream_worker.engine.grammars.schemas.rewriting.closing import closed
from millstream_worker.engine.grammars.schemas.shapes import is_well_formed
from millstream_worker.engine.grammars.schemas.subschemas import Schema, at_path

SEARCH_CPU_S = 2.0  # for all functions of a request; one more check may begin within it
_REFUSED_S = 0.02  # that a check took which found a fault
_MOST_PARTS = 8  # of a schema that are left out one by one, before all of it is
_ANY_OBJECT: Schema = {"type": "object"}

Check = Callable[[Schema, bool], float]  # CPU seconds; True: leniently. Raises ValueError


class Arguments(NamedTuple):
    """A function's arguments, as the grammar keeps them."""

    schema: Schema
    lenient: bool = False  # what the compiler does not know is ignored


def parameters_of(parameters: str) -> Schema:
    """The schema of a function's arguments, which are an object even where it does not say so."""
    schema = json.loads(parameters) if parameters else {"properties": {}, "additionalProperties": False}
    return _ANY_OBJECT | schema if isinstance(schema, dict) else dict(_ANY_OBJECT)


def closed_parameters(parameters: str) -> Schema:
    schema = parameters_of(parameters)
    return closed(schema) if is_well_formed(schema) else schema


class BestEffort:
    """`check` compiles a schema by itself. `partial`: the functions, by name, whose schemas are kept in part
    only, with the whole ones.
    """

    def __init__(self, check: Check) -> None:
        self._check = check
        self._used_s = 0.0
        self.partial: dict[str, str] = {}

    def arguments_of(self, functions: Sequence[tuple[str, str, bool]]) -> list[Arguments]:
        return [self._arguments(*function) for function in functions]

    def _arguments(self, name: str, parameters: str, strict: bool) -> Arguments:
        whole = parameters_of(parameters)
        shut = closed_parameters(parameters)
        for schema in (shut, whole):
            if self._fits(schema, lenient=False):
                return Arguments(schema)
        if strict:
            return Arguments(whole)  # the compiler says why not
        self.partial[name] = json.dumps(whole)
        for schema in (shut, whole):
            if self._fits(schema, lenient=True):
                return Arguments(schema, lenient=True)
        return Arguments(self._without_faults(shut), lenient=True)

    def _without_faults(self, schema: Schema) -> Schema:
        for _ in range(_MOST_PARTS):
            path = path_of(schema, lambda part: not self._fits(part, lenient=True))
            if not path:
                break
            schema = at_path(schema, path, {})
            if self._fits(schema, lenient=True):
                return schema
        return _ANY_OBJECT

    def _fits(self, schema: Schema, *, lenient: bool) -> bool:
        if self._used_s > SEARCH_CPU_S:
            return False
        try:
            self._used_s += self._check(schema, lenient)
        except (ValueError, RecursionError):
            self._used_s += _REFUSED_S
            return False
        return True
