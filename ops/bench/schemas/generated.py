"""Schemas of our own, of the kinds that people write: seeded, so that two runs have the same."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

WORDS = (
    "name",
    "total",
    "date",
    "items",
    "address",
    "email",
    "status",
    "notes",
    "code",
    "count",
    "price",
    "tags",
)
FORMATS = ("date", "date-time", "time", "email", "uuid", "ipv4", "hostname")
PATTERNS = ("^[A-Z]{2}-[0-9]{3}$", "^[a-z]+(_[a-z]+)*$", "^#[0-9a-f]{6}$", "^[0-9]{4}$")
DEEPEST = 3


def schemas(count: int, seed: int) -> dict[str, Schema]:
    """By name; each an object with definitions that some of its properties refer to."""
    return {f"generated {number}": _Author(f"{seed}/{number}").document() for number in range(count)}


class _Author:
    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)

    def document(self) -> Schema:
        document = self._object(0)
        document["$defs"] = {"shared": self._object(DEEPEST)}
        if self._chance.random() < 0.5:
            document["properties"]["shared"] = {"$ref": "#/$defs/shared"}
        return document

    def _object(self, depth: int) -> Schema:
        names = self._chance.sample(WORDS, self._chance.randint(1, 5))
        closed = {"additionalProperties": False} if self._chance.random() < 0.8 else {}
        required = [name for name in names if self._chance.random() < 0.7]
        properties = {name: self._value(depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, **closed}

    def _value(self, depth: int) -> Schema:
        simple = (self._text, self._number, self._choice, self._truth)
        nested = (self._array, self._either, self._child)
        make = self._chance.choice(simple if depth > DEEPEST else (*simple, *simple, *nested))
        return make(depth)

    def _text(self, depth: int) -> Schema:
        match self._chance.randrange(4):
            case 0:
                return {"type": "string", "format": self._chance.choice(FORMATS)}
            case 1:
                return {"type": "string", "pattern": self._chance.choice(PATTERNS)}
            case 2:
                return {"type": "string", "minLength": 1, "maxLength": self._chance.choice((8, 40))}
            case _:
                return {"type": "string", "maxLength": 80}

    def _number(self, depth: int) -> Schema:
        low = self._chance.randint(-50, 50)
        bounds = {"minimum": low, "maximum": low + self._chance.choice((1, 10, 1000))}
        if self._chance.random() < 0.2:
            return {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500}
        return {"type": self._chance.choice(("integer", "number")), **bounds}

    def _choice(self, depth: int) -> Schema:
        values = self._chance.sample(["red", "green", "ä ß", 'a "b"', 1, 2.5, None, True], 3)
        return {"const": values[0]} if self._chance.random() < 0.2 else {"enum": values}

    def _truth(self, depth: int) -> Schema:
        return {"type": ["boolean", "null"]}

    def _array(self, depth: int) -> Schema:
        least = self._chance.randint(0, 2)
        return {"type": "array", "items": self._value(depth + 1), "minItems": least, "maxItems": least + 2}

    def _either(self, depth: int) -> Schema:
        kinds = [{"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 9}, self._child(depth)]
        return {self._chance.choice(("anyOf", "oneOf")): kinds}

    def _child(self, depth: int) -> Schema:
        return self._object(depth + 1)
