"""The keywords of JSON Schema that hold schemas, and the walk through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

Schema = dict[str, Any]
Part = Schema | bool
Path = tuple[str | int, ...]

SHARED = ("$defs", "definitions")  # first: a fault is where it is written, not where it is referred to
BY_NAME = (*SHARED, "properties", "patternProperties", "dependentSchemas", "dependencies")
LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")  # `items`: in early drafts
SINGLE = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "propertyNames",
    "unevaluatedProperties", "not", "if", "then", "else",
)  # fmt: skip


def subschemas(schema: Schema) -> Iterator[tuple[Path, Part]]:
    """Yields the schemas directly inside this one, each with its path below it."""
    for keyword in BY_NAME:
        if isinstance(value := schema.get(keyword), dict):
            yield from (((keyword, name), one) for name, one in value.items() if _is_schema(one))
    for keyword in LISTS:
        if isinstance(value := schema.get(keyword), list):
            yield from (((keyword, place), one) for place, one in enumerate(value) if _is_schema(one))
    for keyword in SINGLE:
        if _is_schema(value := schema.get(keyword)):
            yield (keyword,), value


def all_parts(schema: Part) -> Iterator[Schema]:
    """Yields the schema and those inside it, at any depth, that are objects."""
    open_parts = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, dict):
            yield part
            open_parts += [inner for _, inner in subschemas(part)]


def at_path(value: Any, path: Path, new: Part) -> Any:
    """Returns the schema with another one at the path."""
    if not path:
        return new
    first, *rest = path
    made = value.copy()
    made[first] = at_path(value[first], tuple(rest), new)
    return made


def with_subschemas(schema: Schema, change: Callable[[str, Part], Part]) -> Schema:
    """Returns the schema with each one directly inside it replaced by `change(keyword, schema)`."""
    made = dict(schema)
    for keyword, value in schema.items():
        if keyword in BY_NAME and isinstance(value, dict):
            made[keyword] = {
                name: change(keyword, one) if _is_schema(one) else one for name, one in value.items()
            }
        elif keyword in LISTS and isinstance(value, list):
            made[keyword] = [change(keyword, one) if _is_schema(one) else one for one in value]
        elif keyword in SINGLE and _is_schema(value):
            made[keyword] = change(keyword, value)
    return made


def both(schema: Schema, *others: Part) -> Schema:
    """Returns the schema of what this one and the others take. What stands in it keeps its path."""
    return schema | {"allOf": [*schema.get("allOf", ()), *others]}


def without(schema: Schema, *keywords: str) -> Schema:
    return {name: value for name, value in schema.items() if name not in keywords}


def _is_schema(value: Any) -> TypeGuard[Part]:
    return isinstance(value, dict | bool)
