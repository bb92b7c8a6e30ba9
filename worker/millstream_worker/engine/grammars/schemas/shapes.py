"""The types of the values of JSON Schema's keywords, for rules that read these without own checks."""

from __future__ import annotations

from typing import Any

from millstream_worker.engine.grammars.schemas.subschemas import Schema, all_parts

_SCHEMA = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_COUNT = (
    "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength",
    "minProperties",
)  # fmt: skip
_TEXT = ("$ref", "format", "pattern")


def is_well_formed(schema: Schema) -> bool:
    """True if each known keyword has a value of its type, in all parts."""
    return all(_fits(keyword, value) for part in all_parts(schema) for keyword, value in part.items())


def _fits(keyword: str, value: Any) -> bool:
    if keyword in _SCHEMA:
        return _is_schema(value)
    if keyword in _SCHEMAS:
        return _is_list_of(value, _is_schema)
    if keyword in _BY_NAME:
        return _is_map_of(value, _is_schema)
    if keyword in _COUNT:
        return isinstance(value, int | float) and not isinstance(value, bool) and value // 1 == value >= 0
    if keyword in _TEXT:
        return isinstance(value, str)
    match keyword:
        case "items":
            return _is_schema(value) or _is_list_of(value, _is_schema)
        case "required":
            return _are_names(value)
        case "type":
            return isinstance(value, str) or _are_names(value)
        case "enum":
            return isinstance(value, list)
        case "dependentRequired":
            return _is_map_of(value, _are_names)
        case "dependencies":
            return _is_map_of(value, lambda one: _is_schema(one) or _are_names(one))
    return True


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _are_names(value: Any) -> bool:
    return _is_list_of(value, lambda one: isinstance(one, str))


def _is_list_of(value: Any, check: Any) -> bool:
    return isinstance(value, list) and all(map(check, value))


def _is_map_of(value: Any, check: Any) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))
