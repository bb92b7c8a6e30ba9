"""The rules by which a part of a schema becomes one that the compiler knows.

Each takes a part, and returns it unchanged where it has nothing to say, else one that takes the same values.
`Unknown` is raised where that cannot be said: the part stays, and the compiler refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from millstream_worker.engine.grammars.schemas.rewriting.kinds import same, types_of, values_of, whole
from millstream_worker.engine.grammars.schemas.rewriting.negation import exactly_one, negation
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.rewriting.unevaluated import without_unevaluated
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema, both, without

Rule = Callable[[Schema, Scope], Schema]

FORMATS = frozenset(  # that the compiler knows: all others are annotations
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri",
        "uuid",
    }
)  # fmt: skip
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
    "maxContains",
)  # fmt: skip
_MOST_WAYS = 400  # of writing a list of distinct values
_MOST_NAMES = 16  # of properties one of which must be there


def unevaluated(part: Schema, scope: Scope) -> Schema:
    known = "unevaluatedProperties" in part or "unevaluatedItems" in part
    return without_unevaluated(part, scope) if known and not scope.is_early else part


def idle_keywords(part: Schema, scope: Scope) -> Schema:
    """Keywords that say nothing without another one, or with this value."""
    if "if" not in part:
        part = without(part, "then", "else")
    elif "then" not in part and "else" not in part:
        part = without(part, "if")
    if part.get("uniqueItems") is False:
        part = without(part, "uniqueItems")
    return part if "contains" in part else without(part, "minContains", "maxContains")


def whole_numbers(part: Schema, scope: Scope) -> Schema:
    """2.0 for 2, where a count or a value is meant."""
    made = {name: whole(part[name]) for name in (*_COUNTS, "const", "enum") if name in part}
    return part | made


def unknown_formats(part: Schema, scope: Scope) -> Schema:
    return without(part, "format") if part.get("format", "unknown") not in FORMATS else part


def conditions(part: Schema, scope: Scope) -> Schema:
    """`if`, `then` and `else` as alternatives."""
    if "if" not in part:
        return part
    asked = part["if"]
    fits: Part = {"allOf": [asked, part.get("then", True)]}
    fails: Part = {"allOf": [negation(asked, scope), part.get("else", True)]}
    return both(without(part, "if", "then", "else"), {"anyOf": [fits, fails]})


def negations(part: Schema, scope: Scope) -> Schema:
    if "not" not in part:
        return part
    return both(without(part, "not"), negation(part["not"], scope))


def exclusive_options(part: Schema, scope: Scope) -> Schema:
    """`oneOf` as `anyOf`, each option without what others take, too."""
    if "oneOf" not in part:
        return part
    return both(without(part, "oneOf"), {"anyOf": exactly_one(part["oneOf"], scope)})


def dependencies(part: Schema, scope: Scope) -> Schema:
    """Properties that need others, or a schema, as alternatives: without them, or with what they need."""
    required = part.get("dependentRequired", {}).items()
    needed = [(name, {"required": names}) for name, names in required if names]
    needed += list(part.get("dependentSchemas", {}).items())
    for name, one in part.get("dependencies", {}).items():  # of early drafts
        if one != []:
            needed.append((name, {"required": one} if isinstance(one, list) else one))
    rest = without(part, "dependentRequired", "dependentSchemas", "dependencies")
    if not needed:
        return rest
    ways = [
        {"anyOf": [{"properties": {name: False}}, {"allOf": [{"required": [name]}, one]}]}
        for name, one in needed
    ]
    return both(rest, *ways)


def names_of_properties(part: Schema, scope: Scope) -> Schema:
    """`propertyNames` as properties, patterns of properties, or nothing."""
    if "propertyNames" not in part:
        return part
    named, rest = scope.followed(part["propertyNames"]), without(part, "propertyNames")
    if named is True or named == {}:
        return rest
    if named is False or "string" not in types_of(named) & types_of({"type": named.get("type", "string")}):
        return both(rest, {"maxProperties": 0})
    limits = set(named) & _OF_TEXTS
    if (values := values_of(named)) is not None and limits in ({"const"}, {"enum"}):
        names = [value for value in values if isinstance(value, str)]
        return both(rest, {"properties": dict.fromkeys(names, True), "additionalProperties": False})
    if not limits <= {"pattern", "minLength", "maxLength", "format"} or named.get("format") in FORMATS:
        raise Unknown
    patterns = [named["pattern"]] if "pattern" in named else []
    if "minLength" in named or "maxLength" in named:
        least, most = whole(named.get("minLength", 0)), whole(named.get("maxLength", ""))
        if most != "" and least > most:
            return both(rest, {"maxProperties": 0})
        patterns.append(f"^(?s:.{{{least},{most}}})$")
    closed = [{"patternProperties": {pattern: True}, "additionalProperties": False} for pattern in patterns]
    return both(rest, *closed) if closed else rest


_OF_TEXTS = {
    "pattern", "minLength", "maxLength", "format", "const", "enum", "anyOf", "allOf", "oneOf", "not", "if",
    "$dynamicRef",
}  # fmt: skip


def unique_items(part: Schema, scope: Scope) -> Schema:
    """All ways to write a list of distinct values, where these are few."""
    if part.get("uniqueItems") is not True:
        return part
    rest = without(part, "uniqueItems")
    if "array" not in types_of(part) or part.get("maxItems", 2) <= 1:
        return rest
    items = scope.followed(part.get("items", True))
    if not scope.has_prefix_items or "prefixItems" in part or not isinstance(items, dict):
        raise Unknown
    values = values_of(items)
    if items.get("type") == "boolean" and values is None:
        values = [True, False]
    if values is None:
        raise Unknown
    distinct = list({same(value): value for value in values}.values())
    least, most = part.get("minItems", 0), min(part.get("maxItems", len(distinct)), len(distinct))
    ways: list[Part] = []
    for count in range(least, most + 1):
        for chosen in permutations(distinct, count):
            scope.step()
            ways.append({"type": "array", "minItems": count, **_exactly([{"const": one} for one in chosen])})
            if len(ways) > _MOST_WAYS:
                raise Unknown
    others = sorted(types_of(part) - {"array"})
    return both(rest, {"anyOf": [*ways, *([{"type": others}] if others else [])]})


def contained(part: Schema, scope: Scope) -> Schema:
    """`contains`, where it counts all items, none, or the items of a short list."""
    if "contains" not in part:
        return part
    asked, rest = scope.followed(part["contains"]), without(part, "contains", "minContains", "maxContains")
    least, most = (1, None) if scope.is_early else (part.get("minContains", 1), part.get("maxContains"))
    if least == 0 and most is None:
        return rest
    if asked is True or asked == {}:
        return both(rest, {"minItems": least} | ({} if most is None else {"maxItems": most}))
    if asked is False or (most == 0 and least == 0):
        none: Part = {"items": negation(asked, scope)}
        return both(rest, none if least == 0 else {"type": sorted(types_of({}) - {"array"})})
    length = part.get("maxItems")
    if not scope.has_prefix_items:
        raise Unknown
    if least != 1 or most is not None or length is None or length > _MOST_NAMES:
        raise Unknown
    places = [
        {"type": "array", "minItems": place + 1, "prefixItems": [True] * place + [asked]}
        for place in range(length)
    ]
    return both(rest, {"anyOf": [*places, {"type": sorted(types_of({}) - {"array"})}]})


def some_property(part: Schema, scope: Scope) -> Schema:
    """`minProperties` of 1, where properties may be left out: one of them is there, or another one."""
    known = [name for name, one in part.get("properties", {}).items() if one is not False]
    left = [name for name in known if name not in part.get("required", ())]
    if part.get("minProperties") != 1 or not left:
        return part
    rest = without(part, "minProperties")
    if len(left) < len(known):
        return rest
    if len(left) > _MOST_NAMES:
        raise Unknown
    ways: list[Part] = [{"required": [name]} for name in left]
    if part.get("additionalProperties", True) is not False or part.get("patternProperties"):
        ways.append({"properties": dict.fromkeys(left, False), "minProperties": 1})
    return both(rest, {"anyOf": ways})


def local_dynamic_refs(part: Schema, scope: Scope) -> Schema:
    """`$dynamicRef` to a place in the schema, which is that of a `$ref`."""
    if str(part.get("$dynamicRef", "")).startswith("#/") and "$ref" not in part:
        return without(part, "$dynamicRef") | {"$ref": part["$dynamicRef"]}
    return part


def _exactly(items: list[Part]) -> Schema:
    return {"prefixItems": items, "items": False} if items else {"maxItems": 0}


RULES: tuple[Rule, ...] = (
    unevaluated, idle_keywords, whole_numbers, unknown_formats, local_dynamic_refs, names_of_properties,
    unique_items, contained, some_property, dependencies, negations, conditions, exclusive_options,
)  # fmt: skip
