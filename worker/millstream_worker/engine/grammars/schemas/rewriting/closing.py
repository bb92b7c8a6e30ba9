"""Closes the objects of a schema: where it names properties and says nothing of others, there are no others.

What says which values do not fit (a condition, `not`, options that exclude each other) stays as it is: if it
took less, the whole would take more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from millstream_worker.engine.grammars.schemas.rewriting.kinds import are_disjoint
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.rewriting.unevaluated import cases_of, without_unevaluated
from millstream_worker.engine.grammars.schemas.subschemas import (
    Part,
    Schema,
    all_parts,
    subschemas,
    with_subschemas,
)

_SAY_MORE = (  # of the properties beside those that are named
    "additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "minProperties",
    "dependentRequired", "dependencies",
)  # fmt: skip
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else", "dependentSchemas", "not")


def closed(schema: Schema) -> Schema:
    """Returns a schema that takes no value that this one, which is well-formed, does not take."""
    scope = Scope(schema)
    try:
        kept, joined = _kept_and_joined(schema, scope)
    except (Unknown, RecursionError):
        return schema

    def close(part: Part) -> Part:
        if isinstance(part, bool) or id(part) in kept:
            return part
        made = with_subschemas(part, lambda _, inner: close(inner))
        return made if id(part) in joined else made | _ending(part, scope)

    others = {*_IN_PLACE, *_CONDITIONAL, *_SAY_MORE, "$ref"}
    if schema.get("properties") == {} and not set(schema) & others and id(schema) not in kept:
        return schema | {"additionalProperties": False}  # a function without parameters
    made = close(schema)
    assert isinstance(made, dict), "an object stays one"
    return made


def _ending(part: Schema, scope: Scope) -> Schema:
    """The keyword that closes a part; empty if none can."""
    if set(part) & set(_SAY_MORE):
        return {}
    try:
        cases = cases_of(part, scope)
        named = {name for case in cases for name in case.names}
        if not all(case.names for case in cases) or not named.issuperset(_required(part, scope)):
            return {}
        if not _is_composite(part):
            return {"additionalProperties": False} if "properties" in part else {}
        without_unevaluated(part | {"unevaluatedProperties": False}, scope)
    except (Unknown, RecursionError):
        return {}
    return {"unevaluatedProperties": False}


def _required(part: Part, scope: Scope) -> Iterator[str]:
    if isinstance(part, dict):
        yield from part.get("required", ())
        for inner in _in_place(part, scope):
            yield from _required(inner, scope)


def _kept_and_joined(schema: Schema, scope: Scope) -> tuple[set[int], set[int]]:
    """Returns the parts, by identity, that stay with all inside, and those that others limit as well."""
    kept: set[int] = set()
    joined: set[int] = set()
    for part in all_parts(schema):
        for keyword in ("not", "if", "contains", "propertyNames"):
            _keep(part.get(keyword, True), kept, scope)
        if "oneOf" in part and not _excludes(part["oneOf"], scope):
            for option in part["oneOf"]:
                _keep(option, kept, scope)
        if _is_composite(part):
            for inner in _in_place(part, scope):
                _join(inner, joined, scope)
    return kept, joined


def _excludes(options: list[Part], scope: Scope) -> bool:
    return all(are_disjoint(one, other, scope) for one, other in combinations(options, 2))


def _keep(part: Part, kept: set[int], scope: Scope) -> None:
    scope.step()
    if isinstance(part, bool) or id(part) in kept:
        return
    kept.add(id(part))
    if "$ref" in part:
        _keep(scope.resolve(part["$ref"]), kept, scope)
    for _, inner in subschemas(part):
        _keep(inner, kept, scope)


def _join(part: Part, joined: set[int], scope: Scope) -> None:
    scope.step()
    if isinstance(part, bool) or id(part) in joined:
        return
    joined.add(id(part))
    for inner in _in_place(part, scope):
        _join(inner, joined, scope)


def _in_place(part: Schema, scope: Scope) -> Iterator[Part]:
    """Yields the schemas that limit the same value as this one."""
    for keyword in _IN_PLACE:
        yield from part.get(keyword, ())
    for keyword in ("then", "else"):
        yield part.get(keyword, True)
    yield from part.get("dependentSchemas", {}).values()
    if "$ref" in part:
        yield scope.resolve(part["$ref"])


def _is_composite(part: Schema) -> bool:
    """True if several schemas say together which properties there are."""
    groups = [part[keyword] for keyword in _IN_PLACE if keyword in part]
    groups += [[True]] * ("$ref" in part) + [[True]] * any(keyword in part for keyword in _CONDITIONAL)
    many = "properties" in part or len(groups) > 1 or len(part.get("allOf", ())) > 1
    return bool(groups) and many
