"""The JSON types that a schema takes, its values, and whether two schemas have no value in common."""

from __future__ import annotations

import json
from typing import Any

from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema

TYPES = ("null", "boolean", "number", "string", "array", "object")
_NAMES = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}


def type_of(value: Any) -> str:
    """Returns the type of a JSON value; integers are numbers."""
    return _NAMES.get(type(value), "object")


def same(value: Any) -> str:
    """Returns a text that values have in common which JSON Schema takes as equal: 1.0 is 1, True is not."""
    return json.dumps(whole(value), sort_keys=True)


def whole(value: Any) -> Any:
    """Returns the value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, dict):
        return {name: whole(one) for name, one in value.items()}
    return value


def values_of(schema: Schema) -> list[Any] | None:
    """Returns the values of which it takes some, and no others; None if it does not list any."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def types_of(schema: Schema) -> set[str]:
    """Returns the types of which it may take a value, as far as it says so itself."""
    if (values := values_of(schema)) is not None:
        return {type_of(value) for value in values}
    named = schema.get("type", TYPES)
    named = [named] if isinstance(named, str) else named
    return {"number" if name == "integer" else str(name) for name in named}


def are_disjoint(one: Part, other: Part, scope: Scope) -> bool:
    """True if no value can fit both; False if one may. Raises Unknown."""
    scope.step()
    one, other = scope.followed(one), scope.followed(other)
    if one is False or other is False:
        return True
    if one is True or other is True:
        return False
    for part, against in ((one, other), (other, one)):
        for keyword in ("anyOf", "oneOf"):
            if part.get(keyword) and all(are_disjoint(option, against, scope) for option in part[keyword]):
                return True
        if any(are_disjoint(each, against, scope) for each in part.get("allOf", ())):
            return True
    if scope.is_oldest and ("const" in one or "const" in other):  # which says nothing there
        raise Unknown
    types = types_of(one) & types_of(other)
    if not types:
        return True
    mine, its = values_of(one), values_of(other)
    if mine is not None and its is not None:
        return not {same(value) for value in mine} & {same(value) for value in its}
    return types == {"object"} and _objects_are_disjoint(one, other, scope)


def _objects_are_disjoint(one: Schema, other: Schema, scope: Scope) -> bool:
    for name in (*one.get("required", ()), *other.get("required", ())):
        if are_disjoint(property_of(one, name), property_of(other, name), scope):
            return True
    return False


def property_of(schema: Schema, name: str) -> Part:
    """Returns a schema of all values that the property may have."""
    known: dict[str, Part] = schema.get("properties", {})
    others: Part = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return known.get(name, others)
