"""Rewrites a JSON schema into one that the compiler knows, from the whole down to its parts.

Down: a rule that says what a part does not take reads the part as it was written.
"""

from __future__ import annotations

from millstream_worker.engine.grammars.schemas.rewriting.number_bounds import narrowed
from millstream_worker.engine.grammars.schemas.rewriting.rules import RULES
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.shapes import is_well_formed
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema, with_subschemas


def rewritten(schema: Schema) -> Schema:
    """Returns a schema that takes no value that this one does not take; one that is not well-formed as it is,
    for the compiler to refuse."""
    if not is_well_formed(schema):
        return schema
    return _rewritten(schema, Scope(schema), narrow=True)


def _rewritten(part: Schema, scope: Scope, *, narrow: bool) -> Schema:
    """`narrow`: it may take fewer values, too."""
    if not (scope.is_early and "$ref" in part):  # what stands beside that says nothing
        for rule in RULES:
            try:
                part = rule(part, scope)
            except (Unknown, RecursionError):
                continue

    def change(keyword: str, inner: Part) -> Part:
        if isinstance(inner, bool):
            return inner
        # An option of oneOf, or a condition, that takes less lets the whole take more.
        return _rewritten(inner, scope, narrow=narrow and keyword not in _OPPOSED)

    return with_subschemas(narrowed(part) if narrow else part, change)


_OPPOSED = ("oneOf", "not", "if", "dependentSchemas")
