"""JSON schemas and instances by chance, for tests of laws: small ones, of few names, that often meet."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from jsonschema.validators import Draft202012Validator

Schema = dict[str, Any]
TYPES = ["null", "boolean", "number", "integer", "string", "array", "object"]
NAMES = ["a", "b", "ab"]
SCALARS: list[Any] = [None, True, False, -2, 0, 1, 1.0, 2, 2.5, "", "a", "ab", "b", "bb"]


class RandomSchemas:
    """`part(keyword)` has that keyword and some of those that go with it."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._values: dict[str, Callable[[int], Any]] = {
            "type": lambda depth: self._random.choice(TYPES),
            "const": lambda depth: self._scalar(),
            "enum": lambda depth: [self._scalar() for _ in range(self._random.randint(1, 3))],
            **dict.fromkeys(
                ("not", "if", "then", "else", "additionalProperties", "items", "contains"), self.schema
            ),
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), self._list),
            **dict.fromkeys(("properties", "dependentSchemas"), lambda depth: self._named(NAMES, depth)),
            "patternProperties": lambda depth: self._named(["^a", "b$"], depth, most=1),
            "propertyNames": self._names,
            "required": lambda depth: self._some_names(),
            "dependentRequired": lambda depth: {self._random.choice(NAMES): self._some_names()},
            **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), self._rest),
            **dict.fromkeys(
                ("minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"),
                lambda depth: self._random.choice([0, 1, 1, 2, 2.0]),
            ),
            **dict.fromkeys(("minLength", "maxLength"), lambda depth: self._random.choice([0, 1, 1.0, 2])),
            **dict.fromkeys(
                ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
                lambda depth: self._random.randint(-2, 2),
            ),
            "uniqueItems": lambda depth: self._random.random() < 0.8,
            "format": lambda depth: self._random.choice(["regex", "phone"]),
        }

    def schema(self, depth: int = 2) -> Any:
        if self._random.random() < 0.1:
            return self._random.random() < 0.6
        plain = ("type", "const", "enum", "minimum", "exclusiveMaximum", "maxLength", "required", "minItems")
        return self.part(self._random.choice(plain if depth <= 0 else list(self._values)), depth)

    def part(self, keyword: str, depth: int = 2) -> Schema:
        made = {keyword: self._values[keyword](depth - 1)}
        for other in self._random.sample(list(self._values), self._random.choice([0, 0, 1, 1, 2])):
            made.setdefault(other, self._values[other](min(depth - 1, 1)))
        if keyword == "if":
            made |= {name: self.schema(depth - 1) for name in ("then", "else") if self._random.random() < 0.7}
        if keyword == "contains" and self._random.random() < 0.7:
            made = {keyword: made[keyword], "maxItems": self._random.randint(0, 3)}
        if keyword == "minProperties":
            made |= {keyword: 1, "properties": self._named(NAMES, depth - 1)}
        if keyword == "uniqueItems":
            made["items"] = {"enum": self._random.sample(SCALARS, 2)}
        return made

    def instance(self, depth: int = 2) -> Any:
        kind = self._random.random() if depth else 0.0
        if kind < 0.3:
            return self._scalar()
        if kind < 0.6:
            return [self.instance(depth - 1) for _ in range(self._random.randint(0, 3))]
        names = self._random.sample(NAMES, self._random.randint(0, 3))
        return {name: self.instance(depth - 1) for name in sorted(names)}

    def _scalar(self) -> Any:
        return self._random.choice(SCALARS)

    def _list(self, depth: int) -> list[Any]:
        return [self.schema(depth) for _ in range(self._random.randint(1, 3))]

    def _named(self, names: list[str], depth: int, most: int = 2) -> Schema:
        return {
            name: self.schema(depth) for name in self._random.sample(names, self._random.randint(1, most))
        }

    def _some_names(self) -> list[str]:
        return self._random.sample(NAMES, self._random.randint(0, 2))

    def _names(self, depth: int) -> Any:
        texts: list[Any] = [{"pattern": "^a"}, {"minLength": 2}, {"maxLength": 1}, {"enum": ["a", "x"]}]
        texts += [{"minLength": 2, "maxLength": 1}, {"enum": ["a", "b"], "anyOf": [{"const": "b"}]}]
        return self._random.choice([*texts, self.schema(0)])

    def _rest(self, depth: int) -> Any:
        return False if self._random.random() < 0.6 else self.schema(depth)


def fits(schema: Any, instance: Any) -> bool:
    return bool(Draft202012Validator(schema).is_valid(instance))
