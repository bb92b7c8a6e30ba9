"""A function's parameters: the schema of them all, and each by itself, as plain text or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from millstream_worker.engine.grammars.schemas.rewriting.closing import closed
from millstream_worker.engine.grammars.schemas.shapes import is_well_formed
from millstream_worker.engine.grammars.schemas.subschemas import Schema

_TYPES = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}
_OF_OBJECTS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_ANNOTATIONS = {"title", "description", "default", "examples", "$schema", "$comment", "deprecated"}
_MOST_STEPS = 8  # from reference to reference
ANY_OBJECT: Schema = {"type": "object"}


def parameters_of(parameters: str) -> Schema:
    """The schema of a function's arguments, which are an object even where it does not say so."""
    schema = json.loads(parameters) if parameters else {"properties": {}, "additionalProperties": False}
    return ANY_OBJECT | schema if isinstance(schema, dict) else dict(ANY_OBJECT)


def closed_parameters(parameters: str) -> Schema:
    schema = parameters_of(parameters)
    return closed(schema) if is_well_formed(schema) else schema


@dataclass(frozen=True, slots=True)
class Parameter:
    """`texts`: all that it may be, if it is one of some; `types`: those of JSON that it may have beside
    strings, None where any; `is_text`: it may be a string; `is_exact`: what a form lets it be fits `schema`,
    which has the definitions that it refers to.
    """

    name: str
    required: bool
    schema: Schema
    is_text: bool
    types: frozenset[str] | None
    texts: tuple[str, ...] = ()
    is_exact: bool = True


def parameters_in(schema: Schema) -> list[Parameter] | None:
    """Returns the parameters of an object's schema; None where its properties do not say all."""
    if not is_well_formed(schema):
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if set(schema) - _OF_OBJECTS - _ANNOTATIONS or not set(required) <= set(properties):
        return None
    if not properties and schema.get("additionalProperties") is not False:
        return None
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return [_parameter(name, name in required, own, shared) for name, own in properties.items()]


def value_of(text: str, types: frozenset[str] | None) -> bool:
    """True if the text is JSON of one of these types, and so no string."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    kind = _TYPES.get(type(read))
    return kind is not None and (types is None or kind in types or (kind == "integer" and "number" in types))


def _parameter(name: str, required: bool, given: Any, shared: dict[str, Any]) -> Parameter:
    schema = _resolved(given, shared)
    options = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if options and all(isinstance(one, str) for one in options):
        return Parameter(name, required, schema | shared, True, frozenset(), tuple(options))
    types = _types_of(schema, shared)
    if types is not None and "string" not in types:
        return Parameter(name, required, schema | shared, False, types)
    is_exact = not set(schema) - _ANNOTATIONS - {"type"} or _has_plain_text(schema, shared)
    rest = None if types is None else types - {"string"}
    return Parameter(name, required, schema | shared, True, rest, is_exact=is_exact)


def _resolved(given: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """The schema behind references to definitions, as far as they lead to one."""
    for _ in range(_MOST_STEPS):
        if not isinstance(given, dict) or set(given) - _ANNOTATIONS != {"$ref"}:
            break
        _, _, path = str(given["$ref"]).partition("#/")
        place: Any = shared
        for step in path.split("/"):
            place = place.get(step) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            break
        given = place
    if isinstance(given, dict):
        return given
    return {} if given is True else {"not": {}}


def _types_of(schema: dict[str, Any], shared: dict[str, Any]) -> frozenset[str] | None:
    """The types that it may have; None where that does not stand there."""
    if (kind := schema.get("type")) is not None:
        return frozenset([kind] if isinstance(kind, str) else kind)
    found: set[str] = set()
    for branch in _branches(schema, shared):
        types = _types_of(branch, {}) if branch else None
        if types is None:
            return None
        found |= types
    return frozenset(found) or None


def _branches(schema: dict[str, Any], shared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("anyOf", "oneOf"):
        for branch in schema.get(key, ()):
            yield _resolved(branch, shared)


def _has_plain_text(schema: dict[str, Any], shared: dict[str, Any]) -> bool:
    """True if it is anyOf, and any string fits one of these."""
    if set(schema) - _ANNOTATIONS != {"anyOf"}:
        return False
    plain = (
        set(branch) - _ANNOTATIONS == {"type"} and branch["type"] == "string"
        for branch in _branches(schema, shared)
    )
    return any(plain)
