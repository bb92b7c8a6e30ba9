"""Valid things made wrong: somewhere in a nest of plain values, or anywhere in a string of bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from fuzz.values import FLOATS, INTEGERS, integer, plain, text

Draw = Callable[[Random], Any]
_MAGIC = (
    b"\x00", b"\xff", b"\xc1", b"\xc0", b"\x80", b"\x90", b"\xd9", b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc7\x08\xff", b"\xd6\xff\x00\x00\x00\x00",
    b"\xcb\x7f\xf8" + bytes(6), b"\xca\x7f\x80\x00\x00", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xef\xbb\xbf",
    b"\n", b"\r", b'"', b"\\u d800", b"\\ud800", b"{", b"[" * 200, b"-", b" ",
    b"\xd4\x05x", b"\xc7\x01\x05x",
)  # fmt: skip


def mutate(chance: Random, value: Any, draw: Draw = plain, most: int = 3) -> Any:
    """The value with one to `most` changes in it; it stays itself."""
    value = copy.deepcopy(value)
    for _ in range(chance.randrange(1, most + 1)):
        value = _change(chance, value, draw)
    return value


def _change(chance: Random, value: Any, draw: Draw) -> Any:
    """Go down a random way, and change what is there."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(list(value))
        return _changed_map(chance, value, name, draw)
    if isinstance(value, list | tuple) and value and chance.random() < 0.75:
        place = chance.randrange(len(value))
        items = list(value)
        match chance.randrange(6):
            case 0:
                del items[place]
            case 1:
                items.insert(place, copy.deepcopy(items[place]))
            case 2:
                items.insert(place, draw(chance))
            case _:
                items[place] = _change(chance, items[place], draw)
        return tuple(items) if isinstance(value, tuple) else items
    return _replaced(chance, value, draw)


def _changed_map(chance: Random, value: dict[Any, Any], name: Any, draw: Draw) -> dict[Any, Any]:
    match chance.randrange(8):
        case 0:
            del value[name]
        case 1:
            value[text(chance)] = value.pop(name)
        case 2:
            value[text(chance)] = draw(chance)
        case 3:
            value[name] = draw(chance)
        case _:
            value[name] = _change(chance, value[name], draw)
    return value


def _replaced(chance: Random, value: Any, draw: Draw) -> Any:
    """Something of the same kind, mostly: it comes further than what is of another."""
    if chance.random() < 0.3:
        return draw(chance)
    match value:
        case bool():
            return not value
        case int():
            near = chance.choice((value + 1, value - 1, -value, value * 2))
            return chance.choice(
                (max(-(2**63), min(near, 2**64 - 1)), chance.choice(INTEGERS), integer(chance))
            )
        case float():
            return chance.choice((-value, value * 2, value + 1, chance.choice(FLOATS)))
        case str():
            return chance.choice(
                (value + text(chance), text(chance), value[: len(value) // 2], value.upper(), value * 3)
            )
        case bytes():
            return damage(chance, value)
        case _:
            return draw(chance)


def damage(chance: Random, data: bytes, most: int = 3) -> bytes:
    """The bytes with one to `most` places changed."""
    for _ in range(chance.randrange(1, most + 1)):
        data = _damaged(chance, data)
    return data


def _damaged(chance: Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    end = min(len(data), place + chance.randrange(1, 9))
    match chance.randrange(8):
        case 0 if data:
            flipped = min(place, len(data) - 1)
            return data[:flipped] + bytes([data[flipped] ^ (1 << chance.randrange(8))]) + data[flipped + 1 :]
        case 1:
            return data[:place]
        case 2:
            return data[place:]
        case 3:
            return data[:place] + data[end:]
        case 4:
            return data[:place] + data[place:end] * chance.randrange(2, 5) + data[end:]
        case 5:
            return data[:place] + chance.choice(_MAGIC) + data[place:]
        case 6:
            return data[:place] + chance.choice(_MAGIC) + data[end:]
        case _:
            return data[:place] + chance.randbytes(chance.randrange(1, 9)) + data[end:]
