"""`unevaluatedProperties` and `unevaluatedItems` as `additionalProperties` and `items`: what they mean
depends on the subschemas that an object or array fits, so these become alternatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from millstream_worker.engine.grammars.schemas.rewriting.negation import negation
from millstream_worker.engine.grammars.schemas.rewriting.scope import Scope, Unknown
from millstream_worker.engine.grammars.schemas.subschemas import Part, Schema, both, without

_MOST_OPTIONS = 4  # of an anyOf, which an answer may fit in any combination


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The properties and items that a schema evaluates where the `conditions` hold."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    all_properties: bool = False
    items: int = 0  # the first ones
    all_items: bool = False
    conditions: tuple[Part, ...] = field(default=())

    @property
    def size(self) -> int:
        return sum(map(len, self.names)) + sum(map(len, self.patterns)) + self.items

    def joined(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names + other.names,
            self.patterns + other.patterns,
            self.all_properties or other.all_properties,
            max(self.items, other.items),
            self.all_items or other.all_items,
            self.conditions + other.conditions,
        )


def without_unevaluated(schema: Schema, scope: Scope) -> Schema:
    """Raises Unknown."""
    rest = without(schema, "unevaluatedProperties", "unevaluatedItems")
    properties = schema.get("unevaluatedProperties", True)
    items = schema.get("unevaluatedItems", True)
    if properties in (True, {}) and items in (True, {}):
        return rest
    if items not in (True, {}) and not scope.has_prefix_items:
        raise Unknown
    covers = []
    for case in cases_of(rest, scope):
        scope.spend(case.size)
        cover: Schema = {}
        if not case.all_properties and properties not in (True, {}):
            cover["properties"] = dict.fromkeys(case.names, True)
            cover["patternProperties"] = dict.fromkeys(case.patterns, True)
            cover["additionalProperties"] = properties
        if not case.all_items and items not in (True, {}):
            cover |= {"prefixItems": [True] * case.items, "items": items}
        covers.append({"allOf": [*case.conditions, cover]} if case.conditions else cover)
    return both(rest, *covers) if len(covers) == 1 else both(rest, {"anyOf": covers})


def cases_of(part: Part, scope: Scope) -> list[Evaluated]:
    """Returns all cases of what the part evaluates, one of which holds for each value that fits it."""
    scope.step()
    if isinstance(part, bool):
        return [Evaluated()]
    groups: list[Sequence[Evaluated]] = [[_own(part)]]
    groups += [cases_of(each, scope) for each in part.get("allOf", ())]
    if "$ref" in part:
        groups.append(cases_of(scope.resolve(part["$ref"]), scope))
    if "$dynamicRef" in part or "contains" in part or isinstance(part.get("items"), list):
        raise Unknown
    if "anyOf" in part:
        groups.append(list(_any_of(part["anyOf"], scope)))
    if "oneOf" in part:
        groups.append([case for one in part["oneOf"] for case in _given(one, cases_of(one, scope))])
    if "if" in part:
        groups.append(list(_if(part, scope)))
    for name, needed in part.get("dependentSchemas", {}).items():
        present: Part = {"type": "object", "required": [name]}
        absent: Part = {"properties": {name: False}}
        groups.append([*_given(present, cases_of(needed, scope)), Evaluated(conditions=(absent,))])
    made = []
    for chosen in product(*groups):
        scope.step()
        case = Evaluated()
        for one in chosen:
            case = case.joined(one)
        scope.spend(case.size)
        made.append(case)
    return made


def _own(part: Schema) -> Evaluated:
    inner = part.get("unevaluatedProperties", False), part.get("unevaluatedItems", False)
    return Evaluated(
        tuple(part.get("properties", {})),
        tuple(part.get("patternProperties", {})),
        "additionalProperties" in part or inner[0] is not False,
        len(part.get("prefixItems", ())),
        "items" in part or inner[1] is not False,
    )


def _given(condition: Part, cases: list[Evaluated]) -> list[Evaluated]:
    return [Evaluated(conditions=(condition,)).joined(case) for case in cases]


def _any_of(options: list[Part], scope: Scope) -> Iterator[Evaluated]:
    """Yields the cases of each combination: what fits several options has the properties of all these."""
    if len(options) > _MOST_OPTIONS:
        raise Unknown
    for count in range(1, len(options) + 1):
        for chosen in combinations(options, count):
            for cases in product(*(_given(one, cases_of(one, scope)) for one in chosen)):
                scope.step()
                case = Evaluated()
                for one in cases:
                    case = case.joined(one)
                scope.spend(case.size)
                yield case


def _if(part: Schema, scope: Scope) -> Iterator[Evaluated]:
    condition = part["if"]
    for case in _given(condition, cases_of(condition, scope)):
        for then in cases_of(part.get("then", True), scope):
            yield case.joined(then)
    yield from _given(negation(condition, scope), cases_of(part.get("else", True), scope))
