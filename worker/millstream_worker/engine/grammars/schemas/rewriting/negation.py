"""The schema of all values that another does not take, without `not`, which the compiler does not know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from math import prod
from typing import Any

from millstream_worker.engine.grammars.schemas.rewriting.excluded_texts import pattern_without
from millstream_worker.engine.grammars.schemas.rewriting.kinds import (
    TYPES,
    are_disjoint,
    type_of,
    values_of,
    whole,
)
from millstream_worker.engine.grammars.schemas.rewriting.scope import ANNOTATIONS, Scope, Unknown
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema

_MOST_WAYS = 64  # to fit none of the other options, all of which the compiler writes out
_OPPOSITES = {  # bounds of numbers
    "minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_LEAST = {
    "minLength": ("string", "maxLength"), "minItems": ("array", "maxItems"),
    "minProperties": ("object", "maxProperties"),
}  # fmt: skip
_MOST = {
    "maxLength": ("string", "minLength"), "maxItems": ("array", "minItems"),
    "maxProperties": ("object", "minProperties"),
}  # fmt: skip


def negation(part: Part, scope: Scope) -> Part:
    """Raises Unknown for a schema whose negation cannot be said exactly."""
    scope.step()
    if isinstance(part, bool):
        return not part
    if id(part) not in scope.negations:
        scope.negations[id(part)] = part, _negation(part, scope)
    return scope.negations[id(part)][1]


def _negation(part: Schema, scope: Scope) -> Part:
    if scope.is_oldest and "const" in part:  # which says nothing there
        raise Unknown
    if "$ref" in part:
        return negation(scope.followed(part), scope)
    broken: list[Part] = []  # a value that the schema does not take breaks one of its keywords
    if (values := values_of(part)) is not None:
        broken += _other_values(values)
    for keyword, value in part.items():
        if keyword not in ANNOTATIONS and keyword not in ("const", "enum"):
            broken += _breaks(keyword, value, scope)
    broken = [one for one in broken if one is not False]
    if "const" in part and "enum" in part:
        raise Unknown
    return {"anyOf": broken} if broken else False


def _breaks(keyword: str, value: Any, scope: Scope) -> Iterable[Part]:
    if keyword in _OPPOSITES and not isinstance(value, bool):
        return [{"type": "number", _OPPOSITES[keyword]: value}]
    if keyword in _LEAST:
        kind, opposite = _LEAST[keyword]
        return [{"type": kind, opposite: int(value) - 1}] if value >= 1 else []
    if keyword in _MOST:
        kind, opposite = _MOST[keyword]
        return [{"type": kind, opposite: int(value) + 1}]
    rule = _RULES.get(keyword)
    if rule is None:
        raise Unknown
    return rule(value, scope)


def _other_types(named: str | list[str], scope: Scope) -> Iterable[Part]:
    given = {named} if isinstance(named, str) else set(named)
    if "integer" in given and "number" not in given:
        raise Unknown
    others = [kind for kind in TYPES if kind not in given]
    return [{"type": others}] if others else []


def _other_values(values: list[Any]) -> Iterable[Part]:
    by_type: dict[str, list[Any]] = {kind: [] for kind in TYPES}
    for value in values:
        by_type[type_of(value)].append(whole(value))
    if by_type["array"] or by_type["object"]:
        raise Unknown
    if others := [kind for kind in TYPES if not by_type[kind]]:
        yield {"type": others}
    if by_type["boolean"]:
        yield {"enum": [one for one in (True, False) if one not in by_type["boolean"]]}
    if by_type["string"]:
        yield {"type": "string", "pattern": pattern_without(by_type["string"])}
    if numbers := sorted(set(by_type["number"])):
        yield {"type": "number", "exclusiveMaximum": numbers[0]}
        for low, high in pairwise(numbers):
            yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield {"type": "number", "exclusiveMinimum": numbers[-1]}


def _with_another(properties: dict[str, Part], scope: Scope) -> Iterable[Part]:
    for name, one in properties.items():
        if (other := negation(one, scope)) is not False:
            yield {"type": "object", "properties": {name: other}, "required": [name]}


_RULES: dict[str, Callable[[Any, Scope], Iterable[Part]]] = {
    "type": _other_types,
    "required": lambda names, _: [{"type": "object", "properties": {name: False}} for name in names],
    "properties": _with_another,
    "anyOf": lambda options, scope: [{"allOf": [negation(one, scope) for one in options]}],
    "allOf": lambda parts, scope: [negation(one, scope) for one in parts],
    "not": lambda part, _: [part],
}


def exactly_one(options: list[Part], scope: Scope) -> list[Part]:
    """Returns alternatives of which each takes what one option takes and no other does. Raises Unknown."""
    alternatives: list[Part] = []
    for place, option in enumerate(options):
        others = [other for number, other in enumerate(options) if number != place]
        touching = [other for other in others if not are_disjoint(option, other, scope)]
        barred = [negation(other, scope) for other in touching]
        if prod(len(one["anyOf"]) for one in barred if isinstance(one, dict)) > _MOST_WAYS:
            raise Unknown
        alternatives.append({"allOf": [option, *barred]} if barred else option)
    return alternatives
