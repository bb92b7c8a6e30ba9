"""The fault of a grammar in words: the reason out of llguidance's message, and the place in a JSON schema,
which that does not say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]

_LONGEST = 500
_OF_PATTERN = re.compile(
    r"regex parse error:\n\s*(?P<pattern>[^\n]*)\n.*?error: (?P<reason>[^\n]*)", re.DOTALL
)
_SHARED = ("$defs", "definitions")  # first: a fault is where it is written, not where it is referred to
_BY_NAME = (*_SHARED, "properties", "patternProperties")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties")


def reason_of(error: str) -> str:
    """Returns a message of the compiler as one line, which names the pattern that it means."""
    first = (error.strip() or "it cannot be compiled").splitlines()[0]
    found = _OF_PATTERN.search(error)
    if found is None:
        return first[:_LONGEST]
    return f"{first[:200].removesuffix(':')} in {found['pattern']!r:.100}: {found['reason']:.200}"


def place_of(schema: Schema, fails: Callable[[Schema], bool]) -> str:
    """Returns the path of the smallest part that fails by itself, beside the definitions of the whole."""
    path, part = "", schema
    shared = {name: schema[name] for name in _SHARED if name in schema}
    while found := next((one for one in _parts(part) if fails(shared | one[1])), None):
        name, part = found
        path = f"{path}/{name}"[-200:]
    return path


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yields the schemas in this one that are objects."""
    for keyword in (*_BY_NAME, *_LISTS, *_SINGLE):
        value = schema.get(keyword)
        if keyword in _BY_NAME and isinstance(value, dict):
            inner = [(f"{keyword}/{name!s:.40}", one) for name, one in value.items()]
        elif keyword in _LISTS and isinstance(value, list):
            inner = [(f"{keyword}/{place}", one) for place, one in enumerate(value)]
        else:
            inner = [(keyword, value)] if keyword in _SINGLE else []
        yield from ((name, one) for name, one in inner if isinstance(one, dict))
