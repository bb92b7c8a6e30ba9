"""Rewrites a JSON schema into one that the compiler knows, from the whole down to its parts.

Down: a rule that says what a part does not take reads the part as it was written.
"""

from __future__ import annotations

from millstream_worker.engine.grammars.schemas.rewriting.number_bounds import narrowed
from millstream_worker.engine.grammars.schemas.rewriting.rules import RULES
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.shapes import is_well_formed
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema, all_parts, with_subschemas


def rewritten(schema: Schema) -> Schema:
    """Returns a schema that takes no value that this one does not take. One that is not well-formed, would
    become too large, or refers into what a rule removes, stays as it is: the compiler takes or refuses it.
    """
    if not is_well_formed(schema) or _refers_into_removed(schema):
        return schema
    try:
        return _rewritten(schema, Scope(schema), narrow=True)
    except (Unknown, RecursionError):
        return schema


def _rewritten(part: Schema, scope: Scope, *, narrow: bool) -> Schema:
    """`narrow`: it may take fewer values, too. Raises Unknown if it would become too large."""
    scope.visit(part)
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


def _refers_into_removed(schema: Schema) -> bool:
    names = (str(part.get("$ref", "")).split("/") for part in all_parts(schema))
    return any(not _REMOVED.isdisjoint(each) for each in names)


_OPPOSED = ("oneOf", "not", "if", "dependentSchemas")
_REMOVED = frozenset(  # by rules
    {
        "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies", "contains", "propertyNames",
        "unevaluatedProperties", "unevaluatedItems",
    }
)  # fmt: skip
