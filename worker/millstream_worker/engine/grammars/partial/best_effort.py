"""Chooses the schemas by which a grammar keeps functions' arguments: whole, or without what the compiler does
not know, where the caller did not ask for `strict`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from millstream_worker.engine.grammars.calls.parameters import ANY_OBJECT, closed_parameters, parameters_of
from millstream_worker.engine.grammars.grammar_fault import CpuBudget, PlacedFault, path_of
from millstream_worker.engine.grammars.schemas.subschemas import Schema, at_path

WHOLE_CPU_S = 4.0  # to find the functions that are kept whole; one more check may begin within it
SEARCH_CPU_S = 2.0  # to find what of the others is kept
_MOST_PARTS = 8  # of a schema that are left out one by one, before all of it is

Check = Callable[[Schema, bool], float]  # True: leniently; CPU seconds elsewhere. Raises ValueError


class Arguments(NamedTuple):
    """A function's arguments, as the grammar keeps them."""

    schema: Schema
    lenient: bool = False  # what the compiler does not know is ignored


class BestEffort:
    """`check` compiles a schema by itself; `validate` returns why nothing can be validated by one, a JSON
    text. `partial`: the functions, by name, whose schemas are kept in part only, with the whole ones.
    """

    def __init__(self, check: Check, validate: Callable[[str], str]) -> None:
        self._check = check
        self._validate = validate
        self._budget = CpuBudget(0.0)
        self.partial: dict[str, str] = {}

    def arguments_of(self, functions: Sequence[tuple[str, str, bool]]) -> list[Arguments]:
        """Raises PlacedFault for a function that can neither be kept nor validated."""
        self._budget = CpuBudget(WHOLE_CPU_S)
        kept = [self._kept(parameters) for _, parameters, _ in functions]
        self._budget = CpuBudget(SEARCH_CPU_S)
        return [whole or self._in_part(*function) for whole, function in zip(kept, functions, strict=True)]

    def _kept(self, parameters: str) -> Arguments | None:
        for schema in (closed_parameters(parameters), parameters_of(parameters)):
            if self._fits(schema, lenient=False):
                return Arguments(schema)
        return None

    def _in_part(self, name: str, parameters: str, strict: bool) -> Arguments:
        whole = parameters_of(parameters)
        if strict:
            return Arguments(whole)  # the compiler says why not
        self.partial[name] = json.dumps(whole)
        if problem := self._validate(self.partial[name]):
            raise PlacedFault(
                f"a schema can be neither kept nor validated: {problem} (the parameters of {name})"
            )
        shut = closed_parameters(parameters)
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
        return ANY_OBJECT

    def _fits(self, schema: Schema, *, lenient: bool) -> bool:
        budget = self._budget
        return not budget.is_over and budget.problem(lambda: self._check(schema, lenient)) is None
