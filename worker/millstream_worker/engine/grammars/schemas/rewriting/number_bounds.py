"""Bounds that the compiler keeps: it reads them as binary numbers, integers of 64 bits at most."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from millstream_worker.engine.grammars.schemas.subschemas import Schema

_MOST_INTEGER = 2**63 - 1025  # the largest below 2^63 that is a binary number with a neighbour above
_MOST_FLOAT = 10**18
_MOST_COUNT = 10**9  # characters, items or properties: no answer has as many
_EXACT = 2**53  # up to it, all integers are binary numbers
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def narrowed(part: Schema) -> Schema:
    """Returns the part with bounds at most as wide as its own: those that no binary number is, and those that
    are larger than what can be compiled."""
    made = dict(part)
    most = _MOST_INTEGER if part.get("type") == "integer" else _MOST_FLOAT
    for name in (*_LOW, *_HIGH):
        if _is_number(part.get(name)):
            bound = _bound(part[name], most, low=name in _LOW)
            made[name] = _inside(bound, low=name in _LOW) if name in _EXCLUSIVE else bound
    for name in ("maxLength", "maxItems", "maxProperties"):
        if _is_number(part.get(name)):
            made[name] = min(part[name], _MOST_COUNT)
    return made


def _bound(value: float, most: int, *, low: bool) -> float:
    if low and value < -most:
        return -most
    if not low and value > most:
        return most
    if abs(value) > most or isinstance(value, float):
        return value
    near = float(value)
    if low and Fraction(near) < value:
        near = math.nextafter(near, math.inf)
    if not low and Fraction(near) > value:
        near = math.nextafter(near, -math.inf)
    return int(near)


def _inside(bound: float, *, low: bool) -> float:
    """The next binary number: the compiler takes 1 off an excluded integer, and rounds that back to it."""
    if abs(bound) <= _EXACT or abs(bound) > _MOST_INTEGER:
        return bound
    return int(math.nextafter(float(bound), math.inf if low else -math.inf))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
